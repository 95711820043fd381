//! The shell around the steering loop: channels, the switch, and the clock.

use super::steering::{Input, Output, Steering, SteeringConfig, Step};
use super::switch::{Switch, SwitchCommand};
use std::collections::VecDeque;
use std::future::Future;
use std::time::Duration;
use tailwater_net::Nanos;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// Outputs that wait for the owner before commands do, too.
const OUTPUTS: usize = 1 << 16;

/// Runs an ingress until `stop` is complete, the inputs or the switch's events end, or nobody takes outputs any more.
/// The switch's rules stay in force after that.
///
/// `known` has the chains and servers that are known from the start. Rows of them that the switch has from an earlier
/// ingress are kept, so that flows in progress stay on their servers; other rules of the same
/// [owner](SteeringConfig::owner) are removed.
///
/// ```no_run
/// use tailwater_cluster::ingress::{Endpoint, OpenFlowSwitch, SessionConfig, SteeringConfig, run};
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let endpoint: Endpoint = "unix:/run/openvswitch/br0.mgmt".parse()?;
/// let switch = OpenFlowSwitch::start(endpoint, SessionConfig::default());
/// let (inputs, from_owner) = tokio::sync::mpsc::channel(1024);
/// let (to_owner, mut outputs) = tokio::sync::mpsc::channel(1024);
/// tokio::spawn(run(SteeringConfig::default(), Vec::new(), switch, from_owner, to_owner, std::future::pending()));
/// # drop(inputs);
/// while let Some(output) = outputs.recv().await {
///     println!("{output:?}");
/// }
/// # Ok(())
/// # }
/// ```
pub async fn run(
    config: SteeringConfig,
    known: Vec<Input>,
    mut switch: impl Switch,
    mut inputs: mpsc::Receiver<Input>,
    outputs: mpsc::Sender<Output>,
    stop: impl Future<Output = ()> + Send,
) {
    let start = Instant::now();
    let now = || Nanos(start.elapsed().as_nanos() as u64);
    let mut clock = interval(Duration::from_nanos(config.interval.0.max(1_000_000)));
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut steering = Steering::new(config, now());
    for input in known {
        steering.input(now(), input);
    }
    let mut stop = std::pin::pin!(stop);
    let mut waiting: VecDeque<Output> = VecDeque::new();
    let mut refused: VecDeque<SwitchCommand> = VecDeque::new();
    loop {
        // Commands first: outputs may wait for the owner.
        while let Some(step) = steering.step() {
            match step {
                Step::Output(output) => waiting.push_back(output),
                Step::Switch(command) => {
                    let is_packet = matches!(command, SwitchCommand::PacketOut { .. });
                    refused.push_back(command);
                    if is_packet && refused.len() > 1 {
                        // The switch does not keep up: a packet is not worth the wait.
                        refused.pop_back();
                    }
                }
            }
            while let Some(command) = refused.front() {
                if switch.command(command.clone()).is_err() {
                    break;
                }
                refused.pop_front();
            }
        }
        let is_crowded = waiting.len() > OUTPUTS;
        tokio::select! {
            () = &mut stop => return,
            permit = outputs.reserve(), if !waiting.is_empty() => match (permit, waiting.pop_front()) {
                (Ok(permit), Some(output)) => permit.send(output),
                (Ok(_), None) => {}
                (Err(_), _) => return,
            },
            event = switch.event(), if !is_crowded => match event {
                Some(event) => steering.switch_event(now(), event),
                None => return,
            },
            input = inputs.recv(), if !is_crowded => match input {
                Some(input) => steering.input(now(), input),
                None => return,
            },
            _ = clock.tick() => {
                steering.tick(now());
                while let Some(command) = refused.front() {
                    if switch.command(command.clone()).is_err() {
                        break;
                    }
                    refused.pop_front();
                }
            }
        }
    }
}
