//! Published results: NetBlaze (arXiv 2305.01890, section 4) and Quadrant (SoCC 2022, section 6).

/// Row of a table: median and 99th percentile in microseconds, cores, loss as a share. Values that neither a table nor
/// the text contains are `None`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Row {
    pub p50: Option<f64>,
    pub p99: Option<f64>,
    pub cores: Option<f64>,
    pub loss: Option<f64>,
}

const fn row(p50: f64, p99: f64, cores: f64, loss: f64) -> Row {
    Row {
        p50: Some(p50),
        p99: Some(p99),
        cores: Some(cores),
        loss: Some(loss),
    }
}

/// A platform's rows for objectives of 100 to 500 us. A platform without objectives has the same row five times.
pub type Rows = (&'static str, [Row; 5]);

/// Values from the text of section 4.2 and Table 7 only: Table 3 is missing from the copy that was used.
pub const TABLE_3: &[Rows] = &[
    (
        "metron",
        [Row {
            p50: Some(47.7),
            p99: Some(2541.0),
            cores: Some(21.8),
            loss: None,
        }; 5],
    ),
    (
        // 2,988 to 3,051.
        "quadrant",
        [Row {
            p50: None,
            p99: Some(3020.0),
            cores: None,
            loss: None,
        }; 5],
    ),
    (
        "dyssect",
        [Row {
            p50: Some(35.0),
            p99: Some(78_000.0),
            cores: None,
            loss: None,
        }; 5],
    ),
];

pub const TABLE_4: &[Rows] = &[
    ("metron", [row(254.5, 5580.0, 32.1, 0.044); 5]),
    (
        "quadrant",
        [
            row(34.0, 5459.0, 76.7, 0.126),
            row(34.7, 5465.0, 78.3, 0.133),
            row(34.0, 5452.0, 75.5, 0.132),
            row(34.5, 5473.0, 77.1, 0.137),
            row(34.2, 5455.0, 77.2, 0.135),
        ],
    ),
    (
        "dyssect",
        [
            row(62.6, 78_955.0, 50.6, 0.294),
            row(61.0, 62_528.0, 45.6, 0.246),
            row(60.2, 77_793.0, 47.4, 0.279),
            row(50.2, 87_130.0, 48.2, 0.208),
            row(61.4, 78_030.0, 44.8, 0.214),
        ],
    ),
    (
        "netblaze",
        [
            row(18.0, 101.4, 56.0, 0.004),
            row(22.8, 180.3, 41.9, 0.010),
            row(24.8, 197.2, 42.8, 0.002),
            row(24.9, 210.3, 40.3, 0.007),
            row(26.8, 270.5, 40.6, 0.003),
        ],
    ),
];

pub const TABLE_5: &[Rows] = &[
    ("metron", [row(48.6, 1926.0, 11.9, 0.014); 5]),
    (
        "quadrant",
        [
            row(37.2, 1026.5, 17.9, 0.014),
            row(30.7, 930.0, 17.3, 0.010),
            row(29.5, 765.2, 16.9, 0.013),
            row(29.3, 556.5, 17.3, 0.011),
            row(28.2, 810.2, 16.4, 0.011),
        ],
    ),
    (
        "dyssect",
        [
            row(17.7, 13_586.0, 17.9, 0.044),
            row(17.6, 13_031.0, 17.2, 0.054),
            row(17.8, 12_672.0, 17.9, 0.050),
            row(18.2, 12_480.0, 15.9, 0.052),
            row(19.1, 22_776.0, 16.5, 0.049),
        ],
    ),
    (
        "netblaze",
        [
            row(22.7, 51.9, 17.5, 0.010),
            row(22.9, 52.1, 17.4, 0.011),
            row(23.1, 53.4, 15.0, 0.006),
            row(23.4, 53.2, 16.2, 0.013),
            row(23.5, 53.5, 17.5, 0.008),
        ],
    ),
];

pub const TABLE_6: &[Rows] = &[
    ("metron", [row(78.7, 5310.0, 14.8, 0.029); 5]),
    (
        "quadrant",
        [
            row(70.4, 5352.0, 19.2, 0.073),
            row(69.9, 5363.0, 18.6, 0.072),
            row(70.5, 5351.0, 19.3, 0.074),
            row(70.4, 5369.0, 18.2, 0.073),
            row(69.9, 5373.0, 18.2, 0.072),
        ],
    ),
    (
        "dyssect",
        [
            row(24.2, 48_041.0, 18.4, 0.056),
            row(24.1, 57_273.0, 18.1, 0.049),
            row(23.2, 34_573.0, 16.9, 0.041),
            row(24.4, 50_812.0, 17.0, 0.040),
            row(23.8, 47_229.0, 16.7, 0.044),
        ],
    ),
    (
        "netblaze",
        [
            row(33.1, 87.0, 25.2, 0.006),
            row(41.6, 103.3, 18.1, 0.008),
            row(48.8, 105.6, 16.3, 0.008),
            row(50.0, 108.0, 18.4, 0.007),
            row(60.8, 103.3, 16.6, 0.007),
        ],
    ),
];

/// Table 7: NetBlaze with the objective that Metron happens to meet: 2.5 ms on chain 1, 5 ms on chain 2.
pub const TABLE_7: [Row; 2] = [
    Row {
        p50: Some(51.3),
        p99: Some(2126.0),
        cores: Some(23.9),
        loss: None,
    },
    Row {
        p50: Some(374.2),
        p99: Some(4567.0),
        cores: Some(30.4),
        loss: None,
    },
];

/// Returns a platform's row for an objective of `hundreds` times 100 us.
pub fn of(table: &[Rows], platform: &str, hundreds: usize) -> Row {
    let found = table.iter().find(|(name, _)| *name == platform);
    found.map_or(Row::default(), |(_, rows)| rows[hundreds - 1])
}

/// Tables 1 and 2: a trace, and the 99th percentiles in microseconds for packets of 5, 10 and 20 us.
pub const WHALES: [(&str, [f64; 3]); 2] = [("backbone", [831.3, 2690.0, 6648.0]), ("as", [53.8, 578.0, 3584.0])];
pub const MINNOWS: [(&str, [f64; 3]); 2] = [
    ("backbone", [4029.0, 3830.0, 4671.0]),
    ("as", [3062.0, 14_241.0, 14_558.0]),
];
