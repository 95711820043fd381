//! Building a chain of functions.

use super::Chain;
use super::flow_callbacks::EXPIRE_BUDGET;
use super::forks::SplitPool;
use super::input::InputPolicy;
use super::segment::{Cuts, Layout};
use super::stage::Stage;
use crate::batch::MAX_BATCH;
use crate::flow_table::{EndedFlows, FlowTable};
use crate::function::NetworkFunction;
use tailwater_net::parse::Malformed;

/// Returns the size in bytes of the flow state that these functions need together.
pub fn state_bytes(functions: &[(String, Box<dyn NetworkFunction>)]) -> usize {
    state_bytes_with_cuts(functions, Cuts::NONE)
}

/// Returns the size in bytes of the flow state that these functions need together, in a chain with these cuts.
pub fn state_bytes_with_cuts(functions: &[(String, Box<dyn NetworkFunction>)], cuts: Cuts) -> usize {
    Layout::new(functions, cuts).bytes
}

impl Chain {
    /// Creates a chain of named functions with one segment. `table` is a view of the flow table created for
    /// [`state_bytes`] of these functions; without it, no flow is looked up.
    ///
    /// # Panics
    /// - If a function has state, and there is no table or its rows are too narrow.
    /// - If a function has more than [`MAX_DROP_REASONS`](crate::function::MAX_DROP_REASONS).
    /// - If one function [tracks connections](crate::function::FunctionProperties::tracks_connections) and another
    ///   [opens companions](crate::function::FunctionProperties::opens_companions).
    pub fn new(
        functions: Vec<(String, Box<dyn NetworkFunction>)>,
        table: Option<FlowTable>,
        input: InputPolicy,
    ) -> Chain {
        Chain::with_cuts(functions, table, input, Cuts::NONE)
    }

    /// Same as [`new`](Chain::new), cut into segments. `table` is sized for [`state_bytes_with_cuts`].
    ///
    /// # Panics
    /// Same as [`new`](Chain::new).
    pub fn with_cuts(
        functions: Vec<(String, Box<dyn NetworkFunction>)>,
        table: Option<FlowTable>,
        input: InputPolicy,
        cuts: Cuts,
    ) -> Chain {
        let layout = Layout::new(&functions, cuts);
        Chain::with_layout(functions, table, input, layout)
    }

    pub(super) fn with_layout(
        functions: Vec<(String, Box<dyn NetworkFunction>)>,
        mut table: Option<FlowTable>,
        input: InputPolicy,
        layout: Layout,
    ) -> Chain {
        let Layout {
            segments,
            slots,
            bytes,
            connections,
        } = layout;
        let room = table.as_ref().map_or(0, FlowTable::state_bytes);
        assert!(
            bytes <= room,
            "the flow table has {room} bytes a flow, the chain needs {bytes}"
        );
        let companions = segments.iter().any(|segment| segment.opens_companions);
        assert!(
            !(connections && companions),
            "a flow that is a connection has no companion"
        );
        let mut stages: Vec<_> = functions
            .into_iter()
            .zip(slots)
            .map(|((name, function), slot)| Stage::new(name, function, slot))
            .collect();
        let wanted = stages.iter_mut().any(|stage| stage.function.flow_ends().is_some());
        if let Some(table) = &mut table {
            table.of_connections(connections);
            prepare_ageing(table, &mut stages);
        }
        // State of other segments may be in another core's cache; the core that processes a packet prefetches it.
        if let (Some(table), [first, _, ..]) = (&mut table, &segments[..]) {
            table.fetch_at_look_up(first.bytes.clone());
        }
        Chain {
            stages,
            segments,
            ends: EndedFlows::new(room, wanted),
            table,
            input,
            malformed: [0; Malformed::COUNT],
            non_ip: 0,
            mixture: 0,
            flow_table_full: 0,
            bucket_not_owned: 0,
            lost: 0,
            unseen: Vec::with_capacity(MAX_BATCH),
            external_state: None,
            snapshotter: None,
            isolated: false,
            branches: false,
            waiting: SplitPool::default(),
            predecessor: None,
            flows_are_held: false,
            stopwatch: None,
        }
    }
}

/// Sets the source of idle timeouts and the timer interval that the functions require.
fn prepare_ageing(table: &mut FlowTable, stages: &mut [Stage]) {
    let mut lifetimes = stages
        .iter()
        .filter_map(|stage| Some((stage.function.lifetimes()?, stage.slot.as_ref()?.state.clone())));
    table.set_lifetimes(lifetimes.next());
    let intervals = stages
        .iter_mut()
        .filter_map(|stage| Some(stage.function.timer()?.interval()));
    table.set_timer_interval(intervals.min(), EXPIRE_BUDGET);
}
