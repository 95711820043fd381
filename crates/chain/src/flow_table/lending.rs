//! Buckets lent to other cores: their holders do not use them meanwhile. A core with buckets of its own borrows those
//! of others for a batch at a time.

use super::FlowTable;
use crate::batch::MAX_BATCH;
use tailwater_net::toeplitz::BUCKETS;

impl FlowTable {
    /// Creates a view for a core to which other views lend buckets. It may also receive packets that
    /// were looked up, as a [view for migrated flows](FlowTable::for_migrated_flows).
    ///
    /// # Safety
    /// As there. Besides, while this view looks up or processes a packet that was not looked up, or expires flows of
    /// its bucket, no other view uses the bucket, and earlier uses happen before.
    pub unsafe fn for_lent_buckets(&self) -> FlowTable {
        FlowTable {
            handed: true,
            usable: Box::new([true; BUCKETS]),
            ..self.sharing()
        }
    }

    /// Lets this view, which may hold partitions, borrow buckets from others.
    ///
    /// # Safety
    /// While this view borrows a bucket, no other view uses it, and earlier uses happen before.
    pub unsafe fn enable_borrowing(&mut self) {
        self.borrowed = Some(Vec::with_capacity(MAX_BATCH));
    }

    /// Uses buckets that other views have lent, until [all are returned](FlowTable::return_borrowed). No effect unless
    /// borrowing is [enabled](FlowTable::enable_borrowing).
    #[inline]
    pub(crate) fn borrow_buckets(&mut self, buckets: impl Iterator<Item = u16>) {
        let Some(borrowed) = &mut self.borrowed else {
            return;
        };
        for bucket in buckets {
            let at = usize::from(bucket) % BUCKETS;
            if !self.usable[at] && self.partitions[at].is_none() {
                self.usable[at] = true;
                borrowed.push(bucket);
            }
        }
    }

    /// Uses no bucket of another view any more.
    #[inline]
    pub(crate) fn return_borrowed(&mut self) {
        for bucket in self.borrowed.iter_mut().flat_map(|borrowed| borrowed.drain(..)) {
            self.usable[usize::from(bucket) % BUCKETS] = false;
        }
    }

    /// Lends a bucket that this view holds: until it is [taken back](FlowTable::take_back), this view does not use it.
    #[inline]
    pub(crate) fn lend(&mut self, bucket: u16) {
        let bucket = usize::from(bucket) % BUCKETS;
        self.usable[bucket] = false;
        self.kept[bucket] = false;
    }

    /// Takes a lent bucket back. The core that it was lent to has no packet of it any more.
    #[inline]
    pub(crate) fn take_back(&mut self, bucket: u16) {
        let bucket = usize::from(bucket) % BUCKETS;
        self.usable[bucket] = self.partitions[bucket].is_some();
    }

    /// Takes all lent buckets back, after all other views have ended.
    pub(crate) fn take_all_back(&mut self) {
        (0..BUCKETS as u16).for_each(|bucket| self.take_back(bucket));
    }

    /// Sets whether the flows of a bucket stay in the table, because packets that were looked up are on another core.
    #[inline]
    pub(crate) fn keep_flows(&mut self, bucket: u16, keeps: bool) {
        self.kept[usize::from(bucket) % BUCKETS] = keeps;
    }
}
