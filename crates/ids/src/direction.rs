//! Directions of a connection.

/// Which way a packet of a connection goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the one who opened it.
    ToServer,
    /// To the one who opened it.
    ToClient,
}

impl Direction {
    /// Its place, 0 or 1.
    #[inline]
    pub fn index(self) -> usize {
        self as usize
    }

    /// The other one.
    #[inline]
    pub fn opposite(self) -> Direction {
        match self {
            Direction::ToServer => Direction::ToClient,
            Direction::ToClient => Direction::ToServer,
        }
    }
}
