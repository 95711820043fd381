// Packets and bytes of each flow.
FromDPDKDevice(0, BURST 32, NDESC 1024, PROMISC true) -> MarkMACHeader -> Strip(14) -> CheckIPHeader(CHECKSUM false)
    -> FlowIPManager_CuckooPP(CAPACITY 4194304, TIMEOUT 0) -> FlowCounter
    -> Unstrip(14) -> ToDPDKDevice(0, BURST 32, NDESC 1024, BLOCKING false);
