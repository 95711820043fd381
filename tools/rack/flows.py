"""Packets that a sink has got: gaps, losses and bindings in each phase."""


def received(path):
    """Packets that the sink has got: (time, flow, number, source)."""
    for line in path.read_text().splitlines():
        parts = line.split()
        if len(parts) == 4:
            yield float(parts[0]), int(parts[1]), int(parts[2]), parts[3]


def last(path):
    """Time of the sink's last packet; 0 if there is none."""
    with open(path, "rb") as file:
        file.seek(max(path.stat().st_size - 4096, 0))
        lines = [line.split() for line in file.read().decode().splitlines()[1:]]
    return max((float(parts[0]) for parts in lines if len(parts) == 4), default=0.0)


def told(packets, phases, arguments):
    """Prints what happened in each phase. Returns True if something is wrong."""
    arrivals = sorted(at for at, *_ in packets)
    numbers, sources = {}, {}
    # A packet's time is that of its number, by the flow's packets around it.
    missing = []
    for at, flow, number, source in packets:
        before = numbers.get(flow)
        if before and number > before[1] + 1:
            lost = number - before[1] - 1
            missing += [before[0] + (at - before[0]) * (one + 1) / (lost + 1) for one in range(lost)]
        numbers[flow] = (at, number)
    is_wrong = False
    print(f"{'':42} {'longest gap':>12} {'lost':>6} {'of':>7} {'other bindings':>15} {'flows':>6} {'whole again':>12}")
    for what, began, ended, recovered, longest in phases:
        of_phase = [packet for packet in packets if began <= packet[0] < ended]
        times = [at for at in arrivals if began - 0.1 <= at < ended]
        gap = max((later - earlier for earlier, later in zip(times, times[1:])), default=ended - began)
        lost = sum(began <= at < ended for at in missing)
        moved = 0
        for _, flow, _, source in of_phase:
            moved += sources.get(flow, source) != source
            sources[flow] = source
        flows = len({flow for at, flow, *_ in of_phase if at > ended - 1.5})
        print(
            f"{what:42} {gap * 1e3:9.0f} ms {lost:6} {len(of_phase) + lost:7} {moved:15} {flows:6} {recovered:10.1f} s"
        )
        # What is lost in two such gaps, as in an upgrade of two servers: losses without a gap count, too.
        most_lost = 2 * longest * (len(of_phase) + lost) / (ended - began)
        is_wrong |= gap > longest or lost > most_lost or flows != arguments.flows or moved > 0
    return is_wrong
