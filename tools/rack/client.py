#!/usr/bin/env python3
"""Sends datagrams of flows in turn, until it is ended.

usage: client.py FLOWS PACKETS-PER-SECOND|FILE    a file has packets per second, and is read again and again
"""

import pathlib
import socket
import sys
import time

flows, file = int(sys.argv[1]), pathlib.Path(sys.argv[2])
rate = 0 if file.exists() else int(sys.argv[2])
senders = []
for flow in range(flows):
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.bind(("10.9.0.1", 20000 + flow))
    sender.connect((f"10.1.{flow % 200}.{1 + flow // 200}", 9))
    senders.append(sender)
before, due, looked, number = time.monotonic(), 0.0, 0.0, 0
while True:
    now = time.monotonic()
    if file.exists() and now - looked > 0.2:
        rate, looked = int(file.read_text() or rate), now
    due, before = due + (now - before) * rate, now
    while number < int(due):
        senders[number % flows].send(b"%d %d " % (number % flows, number // flows))
        number += 1
    time.sleep(0.002)
