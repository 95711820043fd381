//! A function by itself whose state is kept outside: it shows its worker an image of each flow, and goes on with what
//! came from there.

use super::stage::Stage;
use crate::flow_table::{FlowIndex, FlowTable};
use crate::function::{NetworkFunction, StateSlot, UNSEEN};
use tailwater_net::Nanos;
use tailwater_sdk::protocol::images::FlowImages;

/// What a function by itself has of the images of its flows.
pub(super) struct Imaging {
    images: FlowImages,
    /// The run's start, on the clock of the world.
    origin: Nanos,
    /// Room for one piece.
    piece: Vec<u8>,
}

impl Imaging {
    /// # Panics
    /// If the images are not of pieces like the function's.
    pub(super) fn new(images: FlowImages, origin: Nanos, stage: &Stage) -> Imaging {
        let own = stage.slot.as_ref().map_or(0, |slot| slot.state.len());
        assert_eq!(own, images.piece_bytes(), "images of this function's state");
        Imaging {
            images,
            origin,
            piece: vec![0; own],
        }
    }

    #[inline]
    pub(super) fn prefetch(&self, place: u32) {
        self.images.prefetch(place);
    }

    /// Before a function is shown a flow for the first time: whether its state is a piece from outside, and what
    /// became of its wishes.
    pub(super) fn show(
        &mut self,
        table: &mut FlowTable,
        flow: FlowIndex,
        (function, slot): (&mut dyn NetworkFunction, &StateSlot),
    ) -> (bool, Option<(u8, u8)>) {
        let offer = self.images.offer(flow.place() as u32, &mut self.piece);
        if table.begin_opening(flow) {
            // A process was killed when it had begun with the flow: what it left is no state.
            table.state(flow, &slot.state).fill(0);
        }
        if offer.restored {
            let state = table.state(flow, &slot.state);
            state.copy_from_slice(&self.piece);
            function.take_durable(state, self.origin);
        }
        (offer.restored, Some((offer.taken, offer.turn)))
    }

    /// The function has let the flow pass. Its images, and its companion's, come first: once the flow counts as seen,
    /// nobody would miss them.
    pub(super) fn opened(
        &mut self,
        table: &mut FlowTable,
        flow: FlowIndex,
        (function, slot): (&dyn NetworkFunction, &StateSlot),
    ) {
        if let Some(companion) = table.take_last_companion() {
            self.reflect(table, companion, (function, slot));
        }
        self.reflect(table, flow, (function, slot));
    }

    /// The function has refused the flow.
    pub(super) fn refused(&self, table: &mut FlowTable, flow: FlowIndex) {
        self.images.refuse(flow.place() as u32);
        table.end_opening(flow);
    }

    /// Makes a flow's image what its state is.
    #[inline]
    fn reflect(
        &mut self,
        table: &mut FlowTable,
        flow: FlowIndex,
        (function, slot): (&dyn NetworkFunction, &StateSlot),
    ) {
        self.piece.copy_from_slice(table.state(flow, &slot.state));
        function.to_durable(&mut self.piece, self.origin);
        let birth = table.born(flow);
        self.images.show(flow.place() as u32, birth, &self.piece);
    }

    /// After a batch: makes the image of a flow what its state is, if the function has seen it.
    #[inline]
    pub(super) fn processed(&mut self, table: &mut FlowTable, flow: FlowIndex, stage: &Stage) {
        if let Some(slot) = &stage.slot
            && *table.word(flow, slot.version) != UNSEEN
        {
            self.reflect(table, flow, (&*stage.function, slot));
        }
    }
}
