// Each flow to one of 16 backends.
FromDPDKDevice(0, BURST 32, NDESC 1024, PROMISC true) -> MarkMACHeader -> Strip(14) -> CheckIPHeader(CHECKSUM false)
    -> FlowIPManager_CuckooPP(CAPACITY 4194304, TIMEOUT 0)
    -> FlowIPLoadBalancer(VIP 203.0.113.1, DST 172.16.0.1, DST 172.16.0.2, DST 172.16.0.3, DST 172.16.0.4, DST 172.16.0.5, DST 172.16.0.6, DST 172.16.0.7, DST 172.16.0.8,
        DST 172.16.0.9, DST 172.16.0.10, DST 172.16.0.11, DST 172.16.0.12, DST 172.16.0.13, DST 172.16.0.14, DST 172.16.0.15, DST 172.16.0.16)
    -> Unstrip(14) -> ToDPDKDevice(0, BURST 32, NDESC 1024, BLOCKING false);
