// Frames go back with their MAC addresses exchanged.
FromDPDKDevice(0, BURST 32, NDESC 1024, PROMISC true) -> EtherMirror() -> ToDPDKDevice(0, BURST 32, NDESC 1024, BLOCKING false);
