#!/usr/bin/env python3
"""Sends datagrams of flows in turn, until it is ended. usage: client.py FLOWS PACKETS-PER-SECOND"""

import socket
import sys
import time

flows, rate = int(sys.argv[1]), int(sys.argv[2])
senders = []
for flow in range(flows):
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.bind(("10.9.0.1", 20000 + flow))
    sender.connect((f"10.1.{flow % 200}.{1 + flow // 200}", 9))
    senders.append(sender)
began, number = time.monotonic(), 0
while True:
    due = int((time.monotonic() - began) * rate)
    while number < due:
        senders[number % flows].send(b"%d %d " % (number % flows, number // flows))
        number += 1
    time.sleep(0.002)
