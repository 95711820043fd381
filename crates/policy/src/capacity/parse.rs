//! Parser for profile files.

use super::error::{ProfileError, quoted};
use super::profile::{API_VERSION, KIND, OLD_API_VERSION};
use super::read::{Reader, Token};
use super::{
    CapacityProfile, DetailedCosts, EpochFrontier, MAX_FLOWS, MAX_NAME_BYTES, MAX_PAUSED, MAX_PAUSES,
    MAX_PAUSES_PER_SECOND, MAX_SPLITS, MAX_WAKES, Pause, RateFrontier, ServiceCosts, SplitPoint, Wake,
};
use crate::core::Load;
use std::ops::RangeInclusive;
use std::str::FromStr;
use tailwater_net::Nanos;

/// Maximum size of a profile file, in bytes.
pub const MAX_BYTES: usize = 1 << 20;
/// Maximum number of points of a frontier in a file.
pub const MAX_POINTS: usize = 1 << 14;

/// Fields of a profile, in the order in which they are written.
const FIELDS: [&str; 14] = [
    "apiVersion",
    "kind",
    "chain",
    "configuration",
    "machine",
    "sloNanoseconds",
    "epochNanoseconds",
    "frontier",
    "rates",
    "splits",
    "costs",
    "details",
    "wakes",
    "pauses",
];
/// Number of leading [`FIELDS`] that are required.
const REQUIRED: usize = 8;

/// Valid range of objectives and epochs, in nanoseconds: at most an hour.
const TIMES: RangeInclusive<u64> = 1..=3_600_000_000_000;

impl CapacityProfile {
    /// Parses the output of [`Display`](std::fmt::Display), in any YAML notation. `file` names the file in errors.
    ///
    /// # Errors
    /// Returns the first error with its position: the file is larger than [`MAX_BYTES`], not UTF-8 or not YAML. A field
    /// is unknown, missing or duplicated, a list has more than [`MAX_POINTS`] points, or a value is not valid for its
    /// field.
    pub fn parse(text: &[u8], file: &str) -> Result<Self, ProfileError> {
        let whole = |message: String| ProfileError::whole_file(file, message);
        if text.len() > MAX_BYTES {
            let limit = MAX_BYTES >> 20;
            return Err(whole(format!("expected at most {limit} MiB, found a larger file")));
        }
        let text = std::str::from_utf8(text).map_err(|error| {
            let line = text[..error.valid_up_to()].split(|b| *b == b'\n').count();
            whole("expected UTF-8 text, found other bytes".to_owned()).at(line, 0)
        })?;

        let mut reader = Reader::new(text, file);
        let mut profile = CapacityProfile::default();
        let mut seen = [false; FIELDS.len()];
        reader.map("the fields of a capacity profile")?;
        while let Some(name) = reader.key()? {
            let Some(field) = FIELDS.iter().position(|field| *field == name) else {
                let expected = FIELDS.join(", ");
                let message = format!("expected one of {expected}; found {}", quoted(&name));
                return Err(reader.error(message));
            };
            reader.enter(name);
            if std::mem::replace(&mut seen[field], true) {
                return Err(reader.error("expected each field once, found it again"));
            }
            profile.read_field(FIELDS[field], &mut reader)?;
            reader.enter("");
        }
        match reader.next()? {
            Token::Finish => {}
            token => return Err(reader.unexpected("the end of the file", &token)),
        }
        match seen[..REQUIRED].iter().position(|seen| !seen) {
            Some(field) => Err(whole("expected this field, found none".to_owned()).in_field(FIELDS[field])),
            None => Ok(profile),
        }
    }

    fn read_field(&mut self, field: &str, reader: &mut Reader<'_>) -> Result<(), ProfileError> {
        match field {
            "apiVersion" => exactly(reader, &[API_VERSION, OLD_API_VERSION]),
            "kind" => exactly(reader, &[KIND]),
            "chain" => name(reader).map(|name| self.chain = name),
            "configuration" => name(reader).map(|name| self.configuration = name),
            "machine" => name(reader).map(|name| self.machine = name),
            "sloNanoseconds" => time(reader).map(|time| self.slo = time),
            "epochNanoseconds" => time(reader).map(|time| self.epoch = time),
            "frontier" => frontier(reader).map(|frontier| self.frontier = frontier),
            "rates" => rates(reader).map(|rates| self.rates = rates),
            "splits" => {
                let what = "[last functions moved, packets, packets], all of them above 0";
                reader.rows(what, MAX_SPLITS, |[functions, first, last]| {
                    let point = SplitPoint {
                        last_functions: functions.parse().ok()?,
                        first: first.parse().ok()?,
                        last: last.parse().ok()?,
                    };
                    self.splits.insert(point).then_some(())
                })
            }
            "costs" => costs(reader).map(|costs| self.costs = Some(costs)),
            "details" => details(reader, self.details.get_or_insert_default()),
            "wakes" => wakes(reader, self.details.get_or_insert_default()),
            _ => pauses(reader, self.details.get_or_insert_default()),
        }
    }
}

/// Reads a field that permits only the `expected` values.
fn exactly(reader: &mut Reader<'_>, expected: &[&str]) -> Result<(), ProfileError> {
    let what = expected.join(" or ");
    let text = reader.text(&what)?;
    if expected.contains(&&*text) {
        return Ok(());
    }
    Err(reader.error(format!("expected {what}, found {}", quoted(&text))))
}

fn name(reader: &mut Reader<'_>) -> Result<String, ProfileError> {
    let text = reader.text("a name")?;
    if text.len() > MAX_NAME_BYTES {
        let message = format!("expected a name of at most {MAX_NAME_BYTES} bytes, found a longer one");
        return Err(reader.error(message));
    }
    Ok(text.into_owned())
}

/// Reads a scalar that parses as `T` and is `valid`.
fn scalar<T: FromStr>(reader: &mut Reader<'_>, what: &str, valid: impl Fn(&T) -> bool) -> Result<T, ProfileError> {
    let text = reader.text(what)?;
    match text.parse().ok().filter(valid) {
        Some(value) => Ok(value),
        None => Err(reader.error(format!("expected {what}, found {}", quoted(&text)))),
    }
}

fn time(reader: &mut Reader<'_>) -> Result<Nanos, ProfileError> {
    let what = "nanoseconds, from 1 to 3600000000000";
    scalar(reader, what, |time| TIMES.contains(time)).map(Nanos)
}

/// Points of a list. A point without a flow count holds for any count and occurs at most once.
type Points<T> = Vec<(Option<u32>, T)>;

fn points<T: FromStr + Default + PartialOrd>(
    reader: &mut Reader<'_>,
    what: &str,
    flows: RangeInclusive<u32>,
    finite: impl Fn(&T) -> bool,
) -> Result<Points<T>, ProfileError> {
    let mut points = Points::<T>::new();
    reader.rows(what, MAX_POINTS, |[count, amount]| {
        let amount: T = amount.parse().ok()?;
        let count = match &*count {
            "any" => None,
            count => Some(count.parse().ok().filter(|count| flows.contains(count))?),
        };
        let again = count.is_none() && points.iter().any(|point| point.0.is_none());
        if again || !finite(&amount) || amount <= T::default() {
            return None;
        }
        points.push((count, amount));
        Some(())
    })?;
    Ok(points)
}

/// Returns the point for any number of flows.
fn any<T: Default + Copy>(points: &Points<T>) -> T {
    let any = points.iter().find(|point| point.0.is_none());
    any.map_or(T::default(), |point| point.1)
}

fn frontier(reader: &mut Reader<'_>) -> Result<EpochFrontier, ProfileError> {
    let what = format!("[flows, packets an epoch], both above 0 and flows at most {MAX_FLOWS} or, once, `any`");
    let points = points(reader, &what, 1..=MAX_FLOWS, |_| true)?;
    let mut frontier = EpochFrontier::constant(any(&points));
    for (flows, packets) in points {
        let flows = flows.unwrap_or_default();
        frontier.insert(Load { flows, packets });
    }
    if frontier.is_empty() {
        return Err(reader.error("expected at least one point, found none"));
    }
    Ok(frontier)
}

fn rates(reader: &mut Reader<'_>) -> Result<RateFrontier, ProfileError> {
    let what = "[flows, packets a second], both above 0 and flows whole or, once, `any`";
    let points = points(reader, what, 1..=u32::MAX, |rate: &f64| rate.is_finite())?;
    let mut frontier = RateFrontier::constant(any(&points));
    for (flows, rate) in points {
        frontier.insert(flows.unwrap_or_default(), rate);
    }
    Ok(frontier)
}

fn costs(reader: &mut Reader<'_>) -> Result<ServiceCosts, ProfileError> {
    const COSTS: [&str; 4] = [
        "batchNanoseconds",
        "packetNanoseconds",
        "byteNanoseconds",
        "newFlowNanoseconds",
    ];
    let [batch, packet, byte, new_flow] = numbers(reader, "costs", "service costs", COSTS)?;
    Ok(ServiceCosts {
        batch,
        packet,
        byte,
        new_flow,
    })
}

fn details(reader: &mut Reader<'_>, details: &mut DetailedCosts) -> Result<(), ProfileError> {
    const DETAILS: [&str; 11] = [
        "trafficPacketNanoseconds",
        "coldAfterPackets",
        "coldBatchNanoseconds",
        "coldPacketNanoseconds",
        "newBatchNanoseconds",
        "receivePacketNanoseconds",
        "ringPacketNanoseconds",
        "queuePacketNanoseconds",
        "handOverPacketNanoseconds",
        "takeOverPacketNanoseconds",
        "pollNanoseconds",
    ];
    let read = numbers(reader, "details", "detailed costs", DETAILS)?;
    let [traffic_packet, cold_after, cold_batch, cold_packet, new_batch, ..] = read;
    let [
        ..,
        receive_packet,
        ring_packet,
        queue_packet,
        hand_over_packet,
        take_over_packet,
        poll,
    ] = read;
    *details = DetailedCosts {
        traffic_packet,
        cold_after: cold_after as u32,
        cold_batch,
        cold_packet,
        new_batch,
        receive_packet,
        ring_packet,
        queue_packet,
        hand_over_packet,
        take_over_packet,
        poll,
        wakes: std::mem::take(&mut details.wakes),
        pauses: std::mem::take(&mut details.pauses),
    };
    Ok(())
}

fn wakes(reader: &mut Reader<'_>, details: &mut DetailedCosts) -> Result<(), ProfileError> {
    let what = "[nanoseconds asleep, median, 90th, 99th percentile], whole numbers that do not decrease";
    let wakes = &mut details.wakes;
    reader.rows(what, MAX_WAKES, |texts: [_; 4]| {
        let mut numbers = [0_u64; 4];
        for (number, text) in numbers.iter_mut().zip(&texts) {
            *number = text.parse().ok().filter(|number| TIMES.contains(number))?;
        }
        let [asleep, p50, p90, p99] = numbers;
        let in_order = p50 <= p90 && p90 <= p99;
        let later = wakes.last().is_none_or(|last: &Wake| last.asleep < asleep);
        (in_order && later).then(|| wakes.push(Wake { asleep, p50, p90, p99 }))
    })
}

fn pauses(reader: &mut Reader<'_>, details: &mut DetailedCosts) -> Result<(), ProfileError> {
    let what = "[pauses a second, nanoseconds each], in order of length, less than half of the time in total";
    let pauses = &mut details.pauses;
    let mut paused = 0.0;
    reader.rows(what, MAX_PAUSES, |[per_second, nanos]: [_; 2]| {
        let per_second: f64 = per_second.parse().ok()?;
        let nanos = nanos.parse().ok().filter(|nanos| TIMES.contains(nanos))?;
        paused += per_second * nanos as f64 / 1e9;
        let few = per_second > 0.0 && per_second <= MAX_PAUSES_PER_SECOND;
        let longer = pauses.last().is_none_or(|last: &Pause| last.nanos < nanos);
        (few && longer && paused < MAX_PAUSED).then(|| pauses.push(Pause { per_second, nanos }))
    })
}

/// Reads a map of non-negative numbers, all of which are required.
fn numbers<const N: usize>(
    reader: &mut Reader<'_>,
    field: &str,
    what: &str,
    names: [&'static str; N],
) -> Result<[f64; N], ProfileError> {
    let mut read = [None; N];
    reader.map(&format!("a map of {what}"))?;
    while let Some(name) = reader.key()? {
        let Some(number) = names.iter().position(|known| *known == name) else {
            let expected = names.join(", ");
            let message = format!("expected one of {expected}; found {}", quoted(&name));
            return Err(reader.error(message));
        };
        reader.enter(format!("{field}.{name}"));
        let expected = match name.ends_with("Nanoseconds") {
            true => "nanoseconds",
            false => "a number",
        };
        let value = scalar(reader, expected, |value: &f64| value.is_finite() && *value >= 0.0)?;
        if read[number].replace(value).is_some() {
            return Err(reader.error("expected each cost once, found it again"));
        }
        reader.enter(field);
    }
    match names.iter().zip(read).find(|(_, value)| value.is_none()) {
        Some((missing, _)) => Err(reader.error(format!("expected {missing} among the {field}, found none"))),
        None => Ok(read.map(Option::unwrap_or_default)),
    }
}
