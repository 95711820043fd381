use super::*;
use proptest::prelude::*;

fn name() -> impl Strategy<Value = String> {
    "[a-zA-Z0-9-]{1,63}"
}

fn description() -> impl Strategy<Value = Description> {
    let reasons = prop::collection::vec((name(), any::<bool>()), 0..=MOST_REASONS);
    let notes = prop::collection::vec(name(), 0..=crate::protocol::layout::MAX_FUNCTION_COUNTERS);
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<Option<u32>>());
    let bytes = (0..=MOST_STATE, 0..=MOST_STATE);
    (name(), bytes, flags, reasons, notes).prop_map(|(name, (state_bytes, piece_bytes), flags, drop_reasons, notes)| {
        let (wants_flow_ends, opens_companions, can_restart, durable) = flags;
        Description {
            name,
            state_bytes,
            wants_flow_ends,
            opens_companions,
            durable,
            can_restart,
            piece_bytes,
            drop_reasons,
            counters: notes,
        }
    })
}

proptest! {
    #[test]
    fn messages_are_read_as_they_were_written(
        description in description(), version: u16, texts: (String, String, String),
        part in 0u16..100, more in 1u16..100, numbers: (u32, u32, u64, u8),
        origin: Option<u64>,
    ) {
        let (field, message, config) = texts;
        for message in [
            FromProgram::Hello { version },
            FromProgram::Describe(description),
            FromProgram::Refuse { field, message: message.clone() },
            FromProgram::Unfit { message: message.clone() },
            FromProgram::Ready,
            FromProgram::Failed { message },
        ] {
            prop_assert_eq!(FromProgram::decode(&message.encode()), Ok(message));
        }
        let (buffer_bytes, flows, round, files) = numbers;
        for message in [
            FromServer::Configure { version, part, of: part + more, config },
            FromServer::Attach { buffer_bytes, flows, round, origin, files },
        ] {
            prop_assert_eq!(FromServer::decode(&message.encode()), Ok(message));
        }
    }

    #[test]
    fn any_bytes_are_a_message_or_none(bytes: Vec<u8>, kind in 0u8..10) {
        let bytes = [&[kind], &*bytes].concat();
        if let Ok(message) = FromProgram::decode(&bytes) {
            prop_assert_eq!(FromProgram::decode(&message.encode()), Ok(message));
        }
        if let Ok(message) = FromServer::decode(&bytes) {
            prop_assert_eq!(message.encode(), bytes);
        }
    }

    #[test]
    fn what_is_cut_short_is_no_message(description in description(), cut: prop::sample::Index) {
        let bytes = FromProgram::Describe(description).encode();
        prop_assert!(FromProgram::decode(&bytes[..cut.index(bytes.len())]).is_err());
    }
}

#[test]
fn names_that_would_spoil_a_report_are_refused() {
    for name in ["", "two\nlines", "a/b", "\u{202e}evil"] {
        let description = Description {
            name: name.to_owned(),
            ..Description::default()
        };
        assert!(FromProgram::decode(&FromProgram::Describe(description).encode()).is_err());
    }
}
