//! Values of flags: durations, rates, sizes, addresses.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;
use tailwater_api::PortName;
use tailwater_api::values::meant_duration;
use tailwater_baselines::catalog::Policy;
use tailwater_handover::park::Mode;
use tailwater_net::Nanos;
use tailwater_placement::improve::Saving;
use tailwater_sim::policies::{comparable, unknown as unknown_policy};
use tailwater_sim::spec::SimulationModel;

/// Maximum duration of a flag, and of a trace.
pub const LONGEST: Nanos = Nanos::from_secs(365 * 86_400);

/// Splits `1.5ms` into number and unit. The number consists of digits and a point.
fn split(text: &str) -> Option<(f64, &str)> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    Some((number.parse().ok()?, unit))
}

fn duration_within(text: &str, range: RangeInclusive<Nanos>) -> Result<Nanos, String> {
    const WHAT: &str = "expected a duration such as 500ms, 3s or 2m, with one of the units ns, us, ms, s, m";
    let (number, unit) = split(text).ok_or(WHAT)?;
    let nanos = match unit {
        "ns" => 1.0,
        "us" | "\u{b5}s" | "\u{3bc}s" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "m" => 60e9,
        "" => return Err(format!("{WHAT}: the unit is missing")),
        unit => {
            let meant = did_you_mean(text, unit, &range);
            return Err(format!("{WHAT}: unknown unit {unit:?}{meant}"));
        }
    };
    // The conversion saturates beyond the integer's range.
    let value = Nanos((number * nanos).round() as u64);
    if !range.contains(&value) {
        let (low, high) = (range.start(), range.end());
        // Minutes where milliseconds are in range.
        let meant = match unit {
            "m" => did_you_mean(text, unit, &range),
            _ => String::new(),
        };
        return Err(format!("expected a duration from {low} to {high}{meant}"));
    }
    Ok(value)
}

/// Returns the end of a message about a duration with a wrong unit: the duration that was probably meant.
fn did_you_mean(text: &str, unit: &str, range: &RangeInclusive<Nanos>) -> String {
    let number = text.trim_end_matches(unit).trim_end();
    let meant = meant_duration(number, unit, range);
    meant.map_or_else(String::new, |meant| format!("; did you mean {meant}?"))
}

/// Parses a service time in microseconds: 5 or 0.5.
///
/// # Errors
/// Not a number, or out of range.
pub fn service(text: &str) -> Result<Nanos, String> {
    let time = text.parse::<f64>().ok().map(|us| (us * 1e3).round());
    time.filter(|nanos| (1.0..=1e9).contains(nanos))
        .map(|nanos| Nanos(nanos as u64))
        .ok_or_else(|| "expected microseconds such as 5 or 5,10,20, at most 1000000".to_owned())
}

/// Parses a duration: `500ms`, `3s`, `2m`.
///
/// # Errors
/// Not a duration, or out of range.
pub fn duration(text: &str) -> Result<Nanos, String> {
    duration_within(text, Nanos(1)..=LONGEST)
}

/// Parses the length of a measurement window.
///
/// # Errors
/// Not a duration, or out of range.
pub fn window(text: &str) -> Result<Nanos, String> {
    duration_within(text, Nanos::from_millis(1)..=Nanos::from_secs(60))
}

/// Parses the sleep time of an idle core.
///
/// # Errors
/// Not a duration, or out of range.
pub fn nap(text: &str) -> Result<Nanos, String> {
    duration_within(text, Nanos::from_micros(1)..=Nanos::from_millis(10))
}

/// Parses the length of each run of a measurement.
///
/// # Errors
/// Not a duration, or out of range.
pub fn run_time(text: &str) -> Result<Nanos, String> {
    duration_within(text, Nanos::from_millis(20)..=Nanos::from_secs(10))
}

/// Duration of a run of the demonstration, in seconds.
pub fn demo_seconds(text: &str) -> Result<Nanos, String> {
    let seconds = text
        .parse::<f64>()
        .ok()
        .filter(|seconds| (0.1..=60.0).contains(seconds));
    let seconds = seconds.ok_or("expected seconds from 0.1 to 60, such as 2")?;
    Ok(Nanos::from_secs_f64(seconds))
}

/// Parses a name as of Kubernetes' objects.
///
/// # Errors
/// Not an RFC 1123 label.
pub fn label(text: &str) -> Result<String, String> {
    match tailwater_api::document::is_label(text) {
        true => Ok(text.to_owned()),
        false => Err("expected lower-case letters, digits and dashes, at most 63".to_owned()),
    }
}

/// Parses the measuring time on cores.
///
/// # Errors
/// Not a duration, or out of range.
pub fn watch(text: &str) -> Result<Nanos, String> {
    duration_within(text, Nanos::from_millis(10)..=Nanos::from_secs(600))
}

/// Parses the time limit of a search.
///
/// # Errors
/// Not a duration, or out of range.
pub fn search(text: &str) -> Result<Nanos, String> {
    duration_within(text, Nanos::from_millis(1)..=Nanos::from_secs(86_400))
}

/// Parses the minimum saving of a plan: `2` servers, or `5%` of those in use.
///
/// # Errors
/// Neither a positive number of servers nor a percentage up to 100.
pub fn saving(text: &str) -> Result<Saving, String> {
    const WHAT: &str = "expected a number of servers, such as 2, or a percentage of those in use, such as 5%";
    let found = match text.strip_suffix('%') {
        Some(percent) => percent.parse().ok().map(Saving::Percent),
        None => text.parse().ok().map(Saving::Servers),
    };
    match found {
        Some(Saving::Percent(percent)) if !(percent > 0.0 && percent <= 100.0) => Err(WHAT.into()),
        Some(Saving::Servers(0)) | None => Err(WHAT.into()),
        Some(saving) => Ok(saving),
    }
}

/// Parses packets per second: `200000`, `200kpps`, `1.5Mpps`.
///
/// # Errors
/// Not a rate, or out of range.
pub fn rate(text: &str) -> Result<f64, String> {
    const WHAT: &str = "expected packets per second such as 200000, 200kpps or 1.5Mpps";
    let (number, unit) = split(text).ok_or(WHAT)?;
    let rate = match unit {
        "" | "pps" => number,
        "kpps" => number * 1e3,
        "Mpps" => number * 1e6,
        _ => return Err(WHAT.to_owned()),
    };
    if !(1e-3..=1e9).contains(&rate) {
        return Err("expected 0.001 to 1000000000 packets per second".to_owned());
    }
    Ok(rate)
}

/// Parses a factor of speed.
///
/// # Errors
/// Not a positive number.
pub fn scale(text: &str) -> Result<f64, String> {
    let scale = text.parse::<f64>().ok();
    scale
        .filter(|scale| scale.is_finite() && *scale > 0.0)
        .ok_or_else(|| "expected a number above zero, such as 2 or 0.5".to_owned())
}

/// Parses a percentage above 0 and up to 1,000 as a ratio.
///
/// # Errors
/// Not a number, or out of range.
pub fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).parse::<f64>().ok();
    number
        .filter(|percent| *percent > 0.0 && *percent <= 1000.0)
        .map(|percent| percent / 100.0)
        .ok_or_else(|| "expected a percentage above 0, at most 1000, such as 3 or 0.5".to_owned())
}

/// Parses the error of a model in percent, up to 50, as a ratio.
///
/// # Errors
/// Not a number, or out of range.
pub fn model_error(text: &str) -> Result<f64, String> {
    let error = percent(text).ok().filter(|error| *error <= 0.5);
    error.ok_or_else(|| "expected a percentage above 0, at most 50, such as 1.5".to_owned())
}

/// Parses a number of bytes: `1000000`, `512M`, `4GiB`. Prefixes are powers of 1024.
///
/// # Errors
/// Not a number of bytes, or zero.
pub fn bytes(text: &str) -> Result<u64, String> {
    const WHAT: &str = "expected a number of bytes such as 1000000, 512M or 4G";
    let (number, unit) = split(text).ok_or(WHAT)?;
    let unit = unit.strip_suffix('B').unwrap_or(unit);
    let unit = unit.strip_suffix('i').unwrap_or(unit);
    let factor = match unit {
        "" => 1u64,
        "k" | "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        "T" => 1 << 40,
        _ => return Err(WHAT.to_owned()),
    };
    let bytes = (number * factor as f64).round() as u64;
    if bytes == 0 {
        return Err("expected at least one byte".to_owned());
    }
    Ok(bytes)
}

/// Parses a list of cores.
///
/// # Errors
/// Not a list, or a core that this process may not use.
pub fn cores(text: &str) -> Result<Cores, String> {
    tailwater_dataplane::cores::parse_list(text)
        .map(Cores)
        .map_err(|error| error.to_string())
}

/// Parses a port.
///
/// # Errors
/// Not the name of a port.
pub fn port(text: &str) -> Result<PortName, String> {
    let name = text.parse::<PortName>().and_then(PortName::of_chain);
    name.map_err(|error| error.to_string())
}

/// Parses one core.
///
/// # Errors
/// Not a single core that this process may use.
pub fn core(text: &str) -> Result<usize, String> {
    match cores(text)?.0[..] {
        [core] => Ok(core),
        _ => Err("expected one core".to_owned()),
    }
}

/// Range of latency objectives.
pub const OBJECTIVES: RangeInclusive<Nanos> = Nanos::from_micros(1)..=Nanos::from_secs(10);

/// Parses a latency objective, with the range of chain specs.
///
/// # Errors
/// Not a duration, or out of range.
pub fn slo(text: &str) -> Result<Nanos, String> {
    duration_within(text, OBJECTIVES)
}

/// Parses a seed of at most 53 bits, which every JSON reader represents exactly.
///
/// # Errors
/// Not a number, or out of range.
pub fn seed(text: &str) -> Result<u64, String> {
    let seed = text.parse().ok().filter(|seed| *seed <= 1 << 53);
    seed.ok_or_else(|| format!("expected a whole number from 0 to {}", 1_u64 << 53))
}

/// Parses the name of a policy.
///
/// # Errors
/// There is no policy of this name.
pub fn policy(text: &str) -> Result<Policy, String> {
    Policy::named(text).map_err(|error| error.to_string())
}

/// Parses the name of a policy for racks.
///
/// # Errors
/// There is no policy of this name for racks.
pub fn rack_policy(text: &str) -> Result<&'static str, String> {
    let mut names = comparable();
    names
        .find(|name| *name == text)
        .ok_or_else(|| unknown_policy(text).to_string())
}

/// Parses the model of a simulation.
///
/// # Errors
/// There is no such model.
pub fn simulation_model(text: &str) -> Result<SimulationModel, String> {
    let known = SimulationModel::ALL.iter().find(|(name, _)| *name == text);
    known
        .map(|(_, model)| *model)
        .ok_or_else(|| "expected packets or flows".to_owned())
}

/// Parses the waiting mode of an auxiliary core.
///
/// # Errors
/// Neither a mode nor a duration within range.
pub fn wait(text: &str) -> Result<Mode, String> {
    match text {
        "sleep" => Ok(Mode::Sleep),
        "spin" => Ok(Mode::Spin),
        _ => duration_within(text, Nanos(1)..=Nanos::from_secs(10))
            .map(|time| Mode::SpinThenSleep(Duration::from_nanos(time.0)))
            .map_err(|error| match split(text) {
                Some(_) => error,
                None => "expected sleep, spin, or a time to spin before sleeping, such as 50us".to_owned(),
            }),
    }
}

/// Cores to run on. A type of its own, since clap takes a plain list for a repeatable flag.
#[derive(Clone, Debug)]
pub struct Cores(pub Vec<usize>);

/// Parses the address of the metrics endpoint; a port alone means the loopback address.
///
/// # Errors
/// Neither a port nor an address with a port.
pub fn metrics_address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.parse::<u16>() {
        return Ok((Ipv4Addr::LOCALHOST, port).into());
    }
    text.parse()
        .map_err(|_| "expected a port, or an address and port such as 0.0.0.0:9090".to_owned())
}

/// Parses a confidence such as `90%`.
pub fn confidence(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).parse::<f64>().ok();
    let valid = number.filter(|percent| *percent > 0.0 && *percent < 100.0);
    valid
        .map(|percent| percent / 100.0)
        .ok_or_else(|| "expected a percentage above 0 and below 100, such as 90%".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, nanos) in [
            ("1ns", 1),
            ("1.5us", 1_500),
            ("2µs", 2_000),
            ("500ms", 500_000_000),
            ("3s", 3_000_000_000),
            ("2m", 120_000_000_000),
        ] {
            assert_eq!(duration(text), Ok(Nanos(nanos)), "{text}");
        }
        for wrong in [
            "", "3", "s", "0s", "0.1ns", "-1s", "1.2.3s", "1e3s", "nans", "3 s", "366h", "9999999m",
        ] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
        assert!(window("300ms").is_ok());
        assert!(window("10us").is_err());
        assert!(window("2m").is_err());
        for (text, end) in [
            ("5u", "unknown unit \"u\"; did you mean 5us?"),
            ("5 msec", "unknown unit \" msec\""),
        ] {
            let error = duration(text).unwrap_err();
            assert!(error.contains(end), "{error}");
        }
        assert!(window("5m").unwrap_err().ends_with("; did you mean 5ms?"));
        assert!(!window("5s5").unwrap_err().contains("did you mean"));
    }

    #[test]
    fn rates() {
        assert_eq!(rate("200000"), Ok(200_000.0));
        assert_eq!(rate("200kpps"), Ok(200_000.0));
        assert_eq!(rate("1.5Mpps"), Ok(1_500_000.0));
        for wrong in ["", "0", "-1", "nan", "inf", "1e5", "1Gbps", "2000Mpps"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
        assert_eq!(scale("0.5"), Ok(0.5));
        assert_eq!(scale("1e3"), Ok(1e3));
        for wrong in ["", "0", "-1", "nan", "inf", "-inf", "1e999", "x"] {
            assert!(scale(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn percents() {
        assert_eq!(percent("3"), Ok(0.03));
        assert_eq!(percent("50%"), Ok(0.5));
        assert_eq!(percent("1000"), Ok(10.0));
        for wrong in ["0", "-1", "1001", "NaN", "inf", "", "%", "3 %", "much"] {
            assert!(percent(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes() {
        assert_eq!(bytes("1000"), Ok(1000));
        assert_eq!(bytes("4G"), Ok(4 << 30));
        assert_eq!(bytes("1.5KiB"), Ok(1536));
        for wrong in ["", "0", "G", "4X", "-1"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn ways_to_wait() {
        assert_eq!(wait("sleep"), Ok(Mode::Sleep));
        assert_eq!(wait("spin"), Ok(Mode::Spin));
        let spin = Duration::from_micros(50);
        assert_eq!(wait("50us"), Ok(Mode::SpinThenSleep(spin)));
        for wrong in ["", "doze", "50", "0s", "11s"] {
            assert!(wait(wrong).is_err(), "{wrong}");
        }
        assert!(wait("doze").unwrap_err().contains("sleep, spin, or"));
        assert!(slo("200us").is_ok());
        assert!(slo("11s").is_err());
        assert!(core("0-1").is_err());
    }

    #[test]
    fn a_port_alone_is_on_the_loopback_address() {
        assert_eq!(metrics_address("9090").unwrap().to_string(), "127.0.0.1:9090");
        assert_eq!(metrics_address("0.0.0.0:80").unwrap().to_string(), "0.0.0.0:80");
        assert_eq!(metrics_address("[::1]:80").unwrap().to_string(), "[::1]:80");
        for wrong in ["", "99999", "localhost", "1.2.3.4", "1.2.3.4:x"] {
            assert!(metrics_address(wrong).is_err(), "{wrong}");
        }
    }
}
