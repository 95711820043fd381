// Addresses and ports of clients become those of 16 external addresses.
FromDPDKDevice(0, BURST 32, NDESC 1024, PROMISC true) -> MarkMACHeader -> Strip(14) -> CheckIPHeader(CHECKSUM false)
    -> FlowIPManager_CuckooPP(CAPACITY 4194304, TIMEOUT 0) -> FlowIPNAT(SIP 203.0.113.1)
    -> Unstrip(14) -> ToDPDKDevice(0, BURST 32, NDESC 1024, BLOCKING false);
