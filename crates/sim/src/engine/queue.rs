//! FIFO queue in one contiguous piece of memory.

/// Number of removed elements from which on memory is compacted, once they are also half of all.
const SLACK: usize = 1024;

/// FIFO queue. See the [module](self).
#[derive(Debug)]
pub(crate) struct Queue<T> {
    all: Vec<T>,
    head: usize,
}

impl<T> Default for Queue<T> {
    fn default() -> Queue<T> {
        Queue {
            all: Vec::new(),
            head: 0,
        }
    }
}

impl<T: Copy> Queue<T> {
    #[inline]
    pub fn push(&mut self, item: T) {
        self.all.push(item);
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.all.len() - self.head
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.head == self.all.len()
    }

    #[inline]
    pub fn first(&self) -> Option<&T> {
        self.all.get(self.head)
    }

    /// Returns the element with `before` elements in front of it.
    #[inline]
    pub fn get(&self, before: usize) -> Option<&T> {
        self.all.get(self.head + before)
    }

    /// Returns all elements.
    #[inline]
    pub fn as_slice(&self) -> &[T] {
        &self.all[self.head..]
    }

    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        &mut self.all[self.head..]
    }

    /// Removes the first `count` elements.
    #[inline]
    pub fn take(&mut self, count: usize) {
        self.head += count;
        if self.head == self.all.len() {
            self.all.clear();
            self.head = 0;
        } else if self.head >= SLACK && 2 * self.head >= self.all.len() {
            self.all.drain(..self.head);
            self.head = 0;
        }
    }

    /// Removes and returns the elements of a range.
    pub fn cut(&mut self, range: std::ops::Range<usize>) -> impl Iterator<Item = T> {
        let range = self.head + range.start..self.head + range.end;
        self.all.drain(range)
    }

    /// Retains the elements for which `stays` returns `true`.
    pub fn retain(&mut self, stays: impl FnMut(&T) -> bool) {
        self.all.drain(..self.head);
        self.head = 0;
        self.all.retain(stays);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(count: usize) -> Queue<usize> {
        let mut queue = Queue::default();
        (0..count).for_each(|item| queue.push(item));
        queue
    }

    #[test]
    fn what_was_taken_is_given_back() {
        let mut queue = queue(10 * SLACK);
        for _ in 0..8 * SLACK {
            queue.take(1);
        }
        assert_eq!(queue.first(), Some(&(8 * SLACK)));
        assert!(queue.all.len() <= 4 * SLACK);
        queue.take(2 * SLACK);
        assert!(queue.is_empty() && queue.all.is_empty());
    }

    #[test]
    fn what_was_taken_is_neither_cut_nor_kept() {
        let mut queue = queue(9);
        queue.take(2);
        assert_eq!(queue.cut(1..3).collect::<Vec<_>>(), [3, 4]);
        queue.retain(|item| item % 2 == 0);
        assert_eq!(queue.as_slice(), [2, 6, 8]);
        assert_eq!((queue.len(), queue.get(1)), (3, Some(&6)));
    }
}
