//! Directions of a connection.

/// Direction of a packet within its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the end that opened the connection.
    ToServer,
    /// To the end that opened the connection.
    ToClient,
}

impl Direction {
    /// Returns the index, 0 or 1.
    #[inline]
    pub fn index(self) -> usize {
        self as usize
    }

    /// Returns the opposite direction.
    #[inline]
    pub fn opposite(self) -> Direction {
        match self {
            Direction::ToServer => Direction::ToClient,
            Direction::ToClient => Direction::ToServer,
        }
    }
}
