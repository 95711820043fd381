#!/usr/bin/env python3
"""Writes a line for each datagram: time, flow, number, source. usage: sink.py FILE"""

import socket
import sys
import time

with open(sys.argv[1], "w", buffering=1) as file:
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    receiver.bind(("0.0.0.0", 9))
    while True:
        data, source = receiver.recvfrom(2048)
        flow, number = data.split()[:2]
        print(f"{time.time():.6f} {int(flow)} {int(number)} {source[0]}:{source[1]}", file=file)
