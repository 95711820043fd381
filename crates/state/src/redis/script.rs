//! Changes of values, as one script of Redis: whether a value may be replaced is decided where it is.

use crate::request::Entry;
use ::redis::cmd;

/// Expected reply to a command.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reply {
    /// This number of values, for the next keys in `places`.
    Values(usize),
    /// Acknowledgement of this number of changes, for the next keys in `places`.
    Changes(usize),
}

/// Most keys of a script: Redis serves nobody else while it runs.
const MOST: usize = 128;

/// Replaces values, or deletes them. For each key three arguments: the number from which the flow was taken up (8
/// bytes, and one more if it joins its companion), the time to live in milliseconds, and the value. With a time of 0
/// the last one is the number of the run, whose values are deleted. Returns the positions of values that were not
/// replaced. The rule is that of `keys::Version::is_replaced`.
const SCRIPT: &str = r"
local refused = {}
for i, key in ipairs(KEYS) do
  local base, life, new = ARGV[3 * i - 2], ARGV[3 * i - 1], ARGV[3 * i]
  local old, length, writer = redis.call('MGET', key)[1], 0, nil
  if old and #old >= 24 and string.sub(old, 1, 4) == 'tw\000\001' then
    length = struct.unpack('>I4', old, 5)
    if #old == length + 24 or #old == length + 64 then
      writer = string.sub(old, length + 17, length + 24)
    end
  end
  if life == '0' then
    if writer == new then redis.call('UNLINK', key) end
  else
    if writer and writer ~= '\000\000\000\000\000\000\000\000' and string.sub(old, 1, 8) == string.sub(new, 1, 8)
      and writer ~= string.sub(new, length + 17, length + 24) then
      local high, low = struct.unpack('>I4I4', old, 9)
      local base_high, base_low = struct.unpack('>I4I4', base)
      if high > base_high or (high == base_high and low > base_low) then
        if #base == 9 and #old == length + 64 and #new == #old and string.sub(old, -40) == string.sub(new, -40) then
          local new_high, new_low = struct.unpack('>I4I4', new, 9)
          if high > new_high or (high == new_high and low >= new_low) then
            low = low + 1
            if low == 4294967296 then high, low = high + 1, 0 end
            new = string.sub(new, 1, 8) .. struct.pack('>I4I4', high, low) .. string.sub(new, 17)
          end
        else
          refused[#refused + 1] = i
          new = nil
        end
      end
    end
    if new then redis.call('SET', key, new, 'PX', life) end
  end
end
return refused
";

/// Changes that the next script makes, in order.
#[derive(Debug, Default)]
pub(super) struct Changes {
    keys: Vec<Vec<u8>>,
    /// Three for each key.
    arguments: Vec<Vec<u8>>,
}

impl Changes {
    pub(super) fn clear(&mut self) {
        self.keys.clear();
        self.arguments.clear();
    }

    pub(super) fn is_full(&self) -> bool {
        self.keys.len() >= MOST
    }

    /// Adds a value that replaces the one of this key.
    pub(super) fn update(&mut self, key: &[u8], value: &[u8], entry: &Entry) {
        let mut base = entry.base.to_be_bytes().to_vec();
        if entry.joins {
            base.push(1);
        }
        self.keys.push(key.to_vec());
        let life = entry.life.max(1).to_string().into_bytes();
        self.arguments.extend([base, life, value.to_vec()]);
    }

    /// Adds a key whose value is deleted if this run has written it.
    pub(super) fn forget(&mut self, key: &[u8], writer: u64) {
        self.keys.push(key.to_vec());
        let writer = writer.to_be_bytes().to_vec();
        self.arguments.extend([Vec::new(), b"0".to_vec(), writer]);
    }

    /// Appends the script's command, if there are changes.
    pub(super) fn flush(&mut self, commands: &mut Vec<u8>, replies: &mut Vec<Reply>) {
        if self.keys.is_empty() {
            return;
        }
        let mut eval = cmd("EVAL");
        eval.arg(SCRIPT)
            .arg(self.keys.len())
            .arg(&self.keys)
            .arg(&self.arguments);
        eval.write_packed_command(commands);
        replies.push(Reply::Changes(self.keys.len()));
        self.clear();
    }
}
