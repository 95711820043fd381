//! `tailwater run --port` without privileges: virtual devices that read and write captures.

mod common;

use common::*;

/// Returns a device that receives one capture and writes another.
fn pcap(number: u32, from: &std::path::Path, to: &std::path::Path) -> String {
    let (from, to) = (from.display(), to.display());
    format!("net_pcap{number},rx_pcap={from},tx_pcap={to}")
}

#[cfg(not(feature = "dpdk"))]
#[test]
fn without_the_feature_ports_are_refused_with_a_hint() {
    let folder = Folder::new();
    let port = pcap(0, &folder.path("in.pcap"), &folder.path("out.pcap"));
    let output = run(&[&"run", &folder.forward(), &"--port", &port]);
    assert_eq!(output.status.code(), Some(2));
    let error = text(&output.stderr);
    assert!(error.contains("--features dpdk"), "{error}");
}

#[cfg(feature = "dpdk")]
mod with_dpdk {
    use super::*;
    use crate::common::namespaces::{Program, wait_for};
    use crate::common::serving::Serving;
    use std::collections::BTreeMap;
    use tailwater_net::builder::FrameBuilder;
    use tailwater_net::{FlowKey, protocol};

    /// Runs a chain on ports for some time.
    fn on_ports(chain: &std::path::Path, ports: &[&str], more: &[&str]) -> serde_json::Value {
        let ports = ports.iter().flat_map(|port| ["--port", port]);
        let output = tailwater()
            .args(["run", "--output", "json", "--duration", "1s"])
            .arg(chain)
            .args(ports)
            .args(more)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_identity(&report);
        report
    }

    #[test]
    fn a_port_gives_what_a_trace_gives() {
        let folder = Folder::new();
        let traffic = folder.capture("in.pcap", &mixture(1000));
        let [of_trace, of_port] = ["trace.pcap", "port.pcap"].map(|name| folder.path(name));
        let chain = folder.acl_nat();
        let more = ["--capture-out", of_trace.to_str().unwrap()];
        report(&chain, &traffic, &more);
        let report = on_ports(&chain, &[&pcap(0, &traffic, &of_port)], &[]);
        for (name, packets) in [("offered", 1000), ("delivered", 900), ("dropped_by_nf", 100)] {
            assert_eq!(count(&report, name), packets, "{report}");
        }
        assert_eq!(report["packets"]["reasons"]["edge/denied"], 100);
        let port = &report["ports"][0];
        assert_eq!((&port["received"], &port["sent"]), (&1000.into(), &900.into()));
        assert_eq!((&port["driver"], &port["gone"]), (&"net_pcap".into(), &false.into()));
        // Byte for byte: the same translations, the same checksums.
        assert!(frames(&of_port) == frames(&of_trace));
    }

    #[test]
    fn packets_cross_from_port_to_port_both_ways() {
        let folder = Folder::new();
        let there = folder.capture("there.pcap", &mixture(600));
        let back = folder.capture("back.pcap", &mixture(400));
        let [a, b] = ["a.pcap", "b.pcap"].map(|name| folder.path(name));
        let [entry, exit] = [pcap(0, &there, &a), pcap(1, &back, &b)];
        for (both_ways, [to_a, to_b]) in [(false, [0, 600]), (true, [400, 600])] {
            let flags: &[&str] = if both_ways { &["--both-ways"] } else { &[] };
            let report = on_ports(&folder.forward(), &[&entry, &exit], flags);
            assert_eq!(count(&report, "delivered"), to_a + to_b);
            for (path, from, packets) in [(&a, &back, to_a), (&b, &there, to_b)] {
                match packets {
                    // Only a capture's header.
                    0 => assert_eq!(std::fs::metadata(path).unwrap().len(), 24),
                    _ => assert!(frames(path) == frames(from)),
                }
            }
        }
    }

    /// One device queue, two workers: one of them distributes packets by the software RETA.
    #[test]
    fn buckets_are_dealt_out_to_cores() {
        if !two_cores() {
            return;
        }
        let folder = Folder::new();
        let traffic = folder.capture("in.pcap", &mixture(1000));
        let [out, other] = ["out.pcap", "other.pcap"].map(|name| folder.path(name));
        // One transmit queue per core.
        let port = format!("{},tx_pcap={}", pcap(0, &traffic, &out), other.display());
        let report = on_ports(&folder.acl_nat(), &[&port], &["--cores", "0,1"]);
        assert_eq!(count(&report, "offered"), 1000);
        assert_eq!(count(&report, "dropped_by_nf"), 100);
        assert_eq!(count(&report, "lost"), 0, "{report}");
        // Both cores sent some packets, correctly.
        let sent = [&out, &other].map(|path| frames(path));
        assert!(sent.iter().all(|sent| !sent.is_empty() && wrong_checksums(sent) == 0));
        assert_eq!(sent[0].len() + sent[1].len(), 900);
    }

    #[test]
    fn ports_of_the_spec_are_used_until_a_signal() {
        let folder = Folder::new();
        let traffic = folder.capture("in.pcap", &mixture(1000));
        let entry = pcap(0, &traffic, &folder.path("out.pcap"));
        let ports = format!("  ports: {{entry: \"{entry}\"}}\n");
        let chain = folder.spec("ports.yaml", "[{forward: }]", &ports);
        let mut command = tailwater();
        command.args(["run", "--output", "json", "--window", "50ms"]).arg(chain);
        let mut serving = Serving::run(&mut command);
        serving.page_with("tailwater_packets_offered_total 1000");
        serving.signal("-INT");
        let report: serde_json::Value = serde_json::from_str(&serving.finish()).unwrap();
        assert_identity(&report);
        assert_eq!(
            (count(&report, "delivered"), &report["interrupted"]),
            (1000, &true.into())
        );
        assert_eq!(report["traffic"], entry);
    }

    #[test]
    fn wrong_ports_are_refused() {
        let folder = Folder::new();
        let forward = folder.forward();
        let matching = folder.spec("match.yaml", "[{forward: }]", "  match: {protocols: [tcp]}\n");
        let refused = |chain, args: &[&str], expected| {
            let output = tailwater().arg("run").arg(chain).args(args).output();
            println!("{args:?}");
            assert_refused(&output.unwrap(), expected);
        };
        for (port, expected) in [
            ("eth0", "write interface=eth0"),
            ("", "expected a PCI address"),
            ("0000:zz:00.0", "expected a PCI address"),
            ("ffff:ff:1f.7", "no such PCI device"),
            ("net_ring0,nodeaction", "expected arguments as in"),
            ("net_nul0", "DPDK has no driver \"net_nul\""),
            ("net_af_packet0,iface=no0", "no interface \"no0\""),
            ("net_af_xdp0,iface=no0", "no interface \"no0\""),
            ("net_null0,siz=64", "check its arguments"),
            ("net_null0,size=0", "port net_null0,size=0: "),
            ("net_pcap0", "DPDK cannot use it"),
            ("net_pcap0,rx_pcap=/nowhere.pcap", "No such file or directory"),
            ("net_memif0,role=king", "DPDK cannot use it"),
            (
                "net_memif0,role=server,socket=/nowhere/socket,socket-abstract=no",
                "DPDK cannot use it",
            ),
        ] {
            refused(&forward, &["--port", port], expected);
        }
        let [packet, xdp] = ["net_af_packet0,iface=lo", "net_af_xdp0,iface=lo"];
        for (ports, expected) in [
            (&["net_ring0", "net_ring0"][..], "the same one twice"),
            (&["net_null0", "net_null0,size=128"], "the same one twice"),
            (&[packet, "net_af_packet1,iface=lo"], "the same one twice"),
            (&[packet, xdp], "the same one twice"),
            (
                &["net_ring0", "net_ring1", "net_ring2"],
                "expected one port, or an entry port and an exit port",
            ),
        ] {
            let ports: Vec<&str> = ports.iter().flat_map(|port| ["--port", port]).collect();
            refused(&forward, &ports, expected);
        }
        for (option, expected) in [
            (&["--rate", "1000"], "not from ports"),
            (&["--traffic", "bursty"], "--traffic"),
            (&["--ring", "100000"], "expected at most 65535"),
        ] {
            let args = [&["--port", "net_ring0"][..], option].concat();
            refused(&forward, &args, expected);
        }
        refused(&forward, &["--both-ways"], "--port");
        refused(&forward, &["--no-promiscuous"], "set one with --port");
        refused(&forward, &["--nap", "50us"], "--nap applies to ports");
        let nap = ["--port", "net_ring0", "--nap", "1s"];
        refused(&forward, &nap, "--nap");
        refused(&matching, &["--port", "net_ring0"], "spec.match");
    }

    /// Returns the packets of each flow, in order; a number in the payload identifies them.
    fn by_flow(frames: &[Vec<u8>]) -> BTreeMap<String, Vec<&Vec<u8>>> {
        let mut flows = BTreeMap::<_, Vec<_>>::new();
        for frame in frames {
            flows.entry(format!("{:?}", key(frame))).or_default().push(frame);
        }
        flows
    }

    /// Returns packets of forty flows, each with its number.
    fn numbered(packets: u32) -> Vec<(u64, Vec<u8>)> {
        let packet = |i: u32| {
            let port = 4000 + (i % 40) as u16;
            let flow = FlowKey::v4(client((i % 7) as u8), SERVER, protocol::UDP, port, 53);
            let number = i.to_be_bytes();
            let frame = FrameBuilder::new(&flow).payload(&number).to_vec();
            (u64::from(i) * 1000, frame.unwrap())
        };
        (0..packets).map(packet).collect()
    }

    /// Writes the policies' profile; measuring it would take longer than the run.
    fn profile(folder: &Folder) -> std::path::PathBuf {
        let text = "apiVersion: tailwater.dev/v1alpha1\nkind: CapacityProfile\nchain: test\n\
                    configuration: \"0\"\nmachine: elsewhere\nsloNanoseconds: 250000000\n\
                    epochNanoseconds: 125000000\nfrontier: [[1, 80], [40, 40]]\n\
                    rates: [[10, 1000000], [1000, 400000]]\n";
        folder.write("measured.yaml", text)
    }

    /// All policies, on a device with one queue per direction. One core receives. Packets are distributed to two cores
    /// by the software RETA, or offloaded by a dispatcher to an auxiliary core. Both cores send in turn. Nothing is
    /// lost, and flows stay in order.
    #[test]
    fn policies_run_on_a_port_with_one_queue_for_two_cores() {
        if !two_cores() {
            return;
        }
        let folder = Folder::new();
        // All arrive at once: no more than can wait between two cores.
        let packets = numbered(1500);
        let traffic = folder.capture("in.pcap", &packets);
        let (out, profile) = (folder.path("out.pcap"), profile(&folder));
        let port = pcap(0, &traffic, &out);
        let expected: Vec<Vec<u8>> = packets.into_iter().map(|(_, frame)| frame).collect();
        let functions = "[{accounting: }, {forward: }]";
        let chain = folder.spec("accounting.yaml", functions, "");
        let dedicated: &[&str] = &["--cores", "0,1"];
        let auxiliary: &[&str] = &["--cores", "0", "--auxiliary", "1"];
        for (cores, policies) in [
            (dedicated, &["static", "rss++", "netblaze", "tailwater"][..]),
            (
                auxiliary,
                &[
                    "netblaze",
                    "netblaze-no-boost",
                    "netblaze-core-static-safe",
                    "tailwater",
                ],
            ),
        ] {
            for policy in policies {
                let profile = ["--profile", profile.to_str().unwrap(), "--policy", policy];
                let profile = if *policy == "static" || *policy == "rss++" {
                    &profile[2..]
                } else {
                    &profile
                };
                println!("{policy} {cores:?}");
                let mut command = tailwater();
                command
                    .args(["run", "--output", "json", "--window", "50ms"])
                    .args(["--port", &port])
                    .arg(&chain)
                    .args(cores)
                    .args(profile);
                // Waits as long as an auxiliary core waits for its CPU.
                let mut serving = Serving::run(&mut command);
                serving.page_with("tailwater_packets_total{outcome=\"delivered\"} 1500");
                let report = serving.stop("-INT");
                let report: serde_json::Value = serde_json::from_str(&report).unwrap();
                assert_identity(&report);
                assert_eq!(count(&report, "offered"), 1500, "{report}");
                assert_eq!(count(&report, "delivered"), 1500, "{report}");
                assert_eq!(report["ports"][0]["send_queues"], 1);
                let sent = frames(&out);
                assert!(by_flow(&sent) == by_flow(&expected), "{policy}");
            }
        }
    }

    /// The only virtual device with its own RETA is programmed, and its table is read back.
    #[test]
    fn a_devices_own_table_is_programmed_and_read_back() {
        if !two_cores() {
            return;
        }
        let folder = Folder::new();
        let report = on_ports(&folder.forward(), &["net_null0"], &["--cores", "0,1"]);
        let port = &report["ports"][0];
        let table: Vec<u64> = serde_json::from_value(port["reta"].clone()).unwrap();
        assert!(table.len() >= 64, "{port}");
        assert!(table.iter().zip(0..).all(|(queue, i)| *queue == i % 2));
        assert_eq!((&port["queues"], &port["send_queues"]), (&2.into(), &2.into()));
        assert_eq!(port["link"]["up"], true);
        assert_eq!(port["arrival_times"], "software");
        // Every field is documented.
        let document = serde_json::json!({"ports": report["ports"]});
        let page = include_str!("../../../docs/reference/commands/run.md");
        assert_eq!(fields(&document, &[]), documented(page, "### Ports, as JSON"));
    }

    /// A device with packets in every poll must not keep a worker from ending.
    #[test]
    fn a_run_under_full_load_ends_by_a_signal() {
        let folder = Folder::new();
        let traffic = folder.capture("in.pcap", &mixture(1000));
        let endless = format!("{},infinite_rx=1", pcap(0, &traffic, &folder.path("out")));
        let ring = ["--port", "net_null0", "--port", "net_ring0", "--both-ways"];
        let mut runs: Vec<Vec<&str>> = vec![ring.to_vec(), vec!["--port", &endless]];
        if two_cores() {
            runs.push([&ring[..], &["--cores", "0,1"]].concat());
        }
        for ports in runs {
            println!("{ports:?}");
            let mut command = tailwater();
            command
                .args(["run", "--output", "json", "--window", "50ms"])
                .arg(folder.forward())
                .args(ports);
            let mut serving = Serving::run(&mut command);
            // After packets have passed for a while.
            serving.page_with("tailwater_latency_seconds_count ");
            std::thread::sleep(std::time::Duration::from_millis(300));
            serving.signal("-INT");
            let report: serde_json::Value = serde_json::from_str(&serving.finish()).unwrap();
            assert_identity(&report);
            assert_eq!(report["interrupted"], true);
            assert!(count(&report, "delivered") > 0, "{report}");
        }
    }

    /// The observable effect is the CPU time left to others.
    #[test]
    fn an_idle_core_naps_if_it_may() {
        let folder = Folder::new();
        let traffic = folder.capture("in.pcap", &mixture(1000));
        let port = pcap(0, &traffic, &folder.path("out.pcap"));
        let naps: [&[&str]; 2] = [&[], &["--nap", "200us"]];
        let used = naps.map(|naps| {
            let report = on_ports(&folder.acl_nat(), &[&port], naps);
            assert_eq!(count(&report, "offered"), 1000);
            assert_eq!(count(&report, "delivered"), 900);
            assert_eq!(report["cores"]["dedicated"], 1);
            report["cores"]["dedicated_avg"].as_f64().unwrap()
        });
        assert!(used[0] == 1.0 && used[1] < 1.0, "{used:?}");
    }

    /// Frames longer than the device's buffers arrive in segments: lost, and counted.
    #[test]
    fn packets_in_pieces_are_counted() {
        let folder = Folder::new();
        let long = |i: u64| {
            let mut frame = udp(client(1), 5000, SERVER, 53);
            frame.resize(if i.is_multiple_of(4) { 6000 } else { 60 }, 0);
            (i * 1000, frame)
        };
        let packets: Vec<_> = (0..100).map(long).collect();
        let traffic = folder.capture("in.pcap", &packets);
        let port = pcap(0, &traffic, &folder.path("out.pcap"));
        let report = on_ports(&folder.forward(), &[&port], &[]);
        assert_eq!(count(&report, "offered"), 100);
        assert_eq!(report["packets"]["reasons"]["in-pieces"], 25, "{report}");
        assert_eq!((count(&report, "delivered"), count(&report, "lost")), (75, 25));
    }

    fn two_cores() -> bool {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        if cores < 2 {
            println!("skipped: this needs two cores");
        }
        cores >= 2
    }

    /// The device is not touched: its use is detected before DPDK is started.
    #[test]
    fn a_device_that_the_kernel_uses_is_left_alone() {
        let devices = std::fs::read_dir("/sys/bus/pci/devices").into_iter().flatten();
        let bound = devices.flatten().find_map(|device| {
            let driver = std::fs::read_link(device.path().join("driver")).ok()?;
            let driver = driver.file_name()?.to_str()?.to_owned();
            let others = ["vfio-pci", "uio_pci_generic", "igb_uio", "mlx4_core", "mlx5_core"];
            (!others.contains(&driver.as_str())).then_some((device.file_name(), driver))
        });
        let Some((address, driver)) = bound else {
            println!("skipped: this machine has no PCI device with a driver");
            return;
        };
        let folder = Folder::new();
        let output = run(&[&"run", &folder.forward(), &"--port", &address]);
        assert_eq!(output.status.code(), Some(2));
        let error = text(&output.stderr);
        let expected = format!("bound to the kernel driver {driver}: dpdk-devbind.py");
        assert!(error.contains(&expected), "{error}");
    }

    #[test]
    fn buffers_beyond_the_cache_are_told() {
        let folder = Folder::new();
        let port = ["--port", "net_null0", "--duration", "200ms", "--ring", "16384"];
        let output = tailwater()
            .arg("run")
            .arg(folder.forward())
            .args(port)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        let fits =
            tailwater_dataplane::ddio::Cache::of_machine().is_none_or(|cache| cache.share() > 2 * 16_384 * 24 * 64);
        let notice = text(&output.stderr);
        assert!(
            fits || notice.contains("2 queues x 16384 descriptors x 24 lines"),
            "{notice}"
        );
        // If the spec gives another number of ways than the machine has, the calculation is printed in any case.
        for (ways, expected) in [
            (10, "notice: packet buffers fit the cache: 2 queues x 512 descriptors"),
            (1, "notice: packet buffers exceed the cache"),
        ] {
            let ddio = format!("{{ways: {ways}, cacheWays: 10, cacheSize: 2MiB}}");
            let ports = format!("  ports: {{entry: net_null0, ddio: {ddio}}}\n");
            let chain = folder.spec("ddio.yaml", "[{forward: }]", &ports);
            let args = ["--duration", "200ms", "--ring", "512"];
            let output = tailwater().arg("run").arg(chain).args(args).output();
            let output = output.unwrap();
            let said = text(&output.stderr);
            assert!(output.status.success(), "{said}");
            let cache = format!("devices write to {ways} of 10 ways of 2.0 MiB");
            assert!(said.contains(expected) && said.contains(&cache), "{said}");
        }
    }

    /// Under load, so that the peer disappears in the middle of bursts, with its shared memory.
    #[test]
    fn a_peer_that_is_killed_takes_nobody_with_it() {
        let folder = Folder::new();
        for turn in 0..4 {
            let socket = folder.path(&format!("memif{turn}"));
            let start = |role: &str| {
                let socket = socket.display();
                let memif = format!("net_memif0,role={role},socket={socket},socket-abstract=no");
                let mut run = tailwater();
                run.args(["run", "--output", "json", "--both-ways"])
                    // Bounds the run in case the test is killed.
                    .args(["--duration", "3m", "--port", "net_null0", "--port", &memif])
                    .arg(folder.forward());
                Program::start(&mut run)
            };
            let mut server = start("server");
            wait_for(|| {
                server.assert_runs();
                server.said().contains("link down")
            });
            let mut client = start("client");
            wait_for(|| {
                client.assert_runs();
                server.said().contains("link up")
            });
            std::thread::sleep(std::time::Duration::from_millis(200));
            let (killed, mut left) = match turn % 2 {
                0 => (server, client),
                _ => (client, server),
            };
            drop(killed);
            wait_for(|| {
                left.assert_runs();
                left.said().ends_with("link down\n")
            });
            let report = left.stop();
            assert_identity(&report);
            assert_eq!(report["ports"][1]["link"]["up"], false, "{report}");
        }
    }

    /// Chains of a server share a device. Its packets are those of the chains and of no chain.
    #[test]
    fn chains_of_a_server_share_a_device() {
        let folder = Folder::new();
        let frame = |network: u8, port: u16| {
            let key = FlowKey::v4(
                [10, 9, 0, 1].into(),
                [10, network, 0, 1].into(),
                protocol::UDP,
                port,
                53,
            );
            FrameBuilder::new(&key).to_vec().unwrap()
        };
        let frames: Vec<_> = (0..300)
            .map(|at| (u64::from(at), frame(1 + (at % 3) as u8, 1000 + at)))
            .collect();
        let traffic = folder.capture("in.pcap", &frames);
        for network in [1, 2] {
            let chain = format!(
                "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: net{network}}}\nspec:\n  match: \
                 {{destinations: [10.{network}.0.0/16]}}\n  slo: {{latency: 100ms}}\n  functions: [forward: {{}}]\n"
            );
            std::fs::write(folder.path(&format!("{network}.yaml")), chain).unwrap();
        }
        let server = format!(
            "apiVersion: tailwater.dev/v1alpha1\nkind: Server\nmetadata: {{name: edge}}\nspec:\n  cores: \"0\"\n  \
             ports: [{{name: north, port: \"net_pcap0,rx_pcap={},infinite_rx=1\"}}]\n  chains: [1.yaml, 2.yaml]\n  \
             control: {{socket: edge.sock}}\n  stateDirectory: state\n",
            traffic.display()
        );
        std::fs::write(folder.path("server.yaml"), server).unwrap();
        let output = tailwater()
            .args(["serve", "--output", "json", "--duration", "1s", "server.yaml"])
            .current_dir(folder.path("."))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let port = |name: &str| report["ports"][0][name].as_u64().unwrap();
        let mut offered = 0;
        for chain in report["chains"].as_array().unwrap() {
            assert_identity(&chain["report"]);
            assert!(count(&chain["report"], "delivered") > 0, "{report}");
            offered += count(&chain["report"], "offered");
        }
        assert_eq!(report["chains"].as_array().map(Vec::len), Some(2));
        assert!(port("unmatched") > 0, "{report}");
        assert_eq!(port("received"), offered + port("unmatched") + port("lost"), "{report}");
    }
}
