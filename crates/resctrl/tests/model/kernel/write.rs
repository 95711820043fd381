//! Commands written to files of the model.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use libc::{EINVAL, ENODEV, ESRCH};

use super::{Errno, Kernel, Mode};

impl Kernel {
    /// Executes a command. `writer` is the task that writes.
    ///
    /// # Errors
    /// The error number with which the kernel rejects the command.
    pub fn write(&mut self, path: &str, text: &str, writer: i32) -> Result<(), Errno> {
        let (group, mon, inner) = self.place(path).ok_or(ENODEV)?;
        let ended = text.strip_suffix('\n');
        match inner {
            // "Valid input requires a trailing newline": without one, the command is rejected without a message.
            "schemata" | "mode" if ended.is_none() => return Err(EINVAL),
            _ => self.status.clear(),
        }
        let body = ended.unwrap_or(text);
        match inner {
            "schemata" => self.write_schemata(group, body),
            "mode" => self.write_mode(group, body),
            "tasks" => self.write_tasks(group, mon, body, writer),
            "cpus_list" => match cores_of_list(body) {
                Some(cores) => self.write_cores(group, mon, cores),
                None => self.say(EINVAL, "Bad CPU list/mask"),
            },
            "cpus" => match u64::from_str_radix(&body.trim().replace(',', ""), 16) {
                Ok(mask) => self.write_cores(group, mon, (0..64).filter(|core| mask >> core & 1 == 1).collect()),
                Err(_) => self.say(EINVAL, "Bad CPU list/mask"),
            },
            _ if self.node(path).is_none() => Err(ENODEV),
            _ => Err(EINVAL),
        }
    }

    fn write_schemata(&mut self, group: usize, text: &str) -> Result<(), Errno> {
        let closid = self.groups[group].closid;
        let mut staged = BTreeMap::new();
        for line in text.split('\n') {
            let Some((name, values)) = line.split_once(':') else {
                return self.say(EINVAL, "Missing ':'");
            };
            let name = name.trim();
            if values.is_empty() {
                return self.say(EINVAL, &format!("Missing '{name}' value"));
            }
            let Some(index) = self.schemas.iter().position(|schema| schema.name == name) else {
                return self.say(EINVAL, &format!("Unknown or unsupported resource name '{name}'"));
            };
            let mut rest = values;
            while !rest.is_empty() {
                let (part, after) = rest.split_once(';').unwrap_or((rest, ""));
                rest = after;
                let pair = part
                    .split_once('=')
                    .and_then(|(id, value)| Some((id.parse::<u32>().ok()?, value.trim())));
                let Some((domain, value)) = pair else {
                    return self.say(EINVAL, "Missing '=' or non-numeric domain");
                };
                if !self.schemas[index].domains.contains(&domain) {
                    return Err(EINVAL);
                }
                if staged.contains_key(&(index, domain, closid)) {
                    return self.say(EINVAL, &format!("Duplicate domain {domain}"));
                }
                let value = match self.schemas[index].cache {
                    Some(cache) => self.check_mask(group, index, cache, domain, value)?,
                    None => self.check_bandwidth(value)?,
                };
                staged.insert((index, domain, closid), value);
            }
        }
        self.values.extend(staged);
        Ok(())
    }

    fn check_bandwidth(&mut self, value: &str) -> Result<u32, Errno> {
        let (_, min, step) = self.machine.memory.unwrap();
        match value.parse::<u32>() {
            Err(_) => self.say(EINVAL, &format!("Invalid MB value {value}")),
            Ok(limit) if limit < min || limit > 100 => {
                self.say(EINVAL, &format!("MB value {limit} out of range [{min},100]"))
            }
            Ok(limit) => Ok(limit.next_multiple_of(step)),
        }
    }

    fn check_mask(&mut self, group: usize, schema: usize, cache: usize, domain: u32, text: &str) -> Result<u32, Errno> {
        let (sparse, min) = (self.machine.caches[cache].sparse, self.machine.caches[cache].min);
        let digits = text.strip_prefix("0x").unwrap_or(text);
        let Ok(mask) = u64::from_str_radix(digits, 16) else {
            return self.say(EINVAL, &format!("Non-hex character in the mask {text}"));
        };
        if (min > 0 && mask == 0) || mask > u64::from(self.schemas[schema].full) {
            return self.say(EINVAL, "Mask out of range");
        }
        let mask = mask as u32;
        let row = (mask >> mask.trailing_zeros().min(31)).trailing_ones();
        if !sparse && row != mask.count_ones() {
            return self.say(EINVAL, &format!("The mask {mask:x} has non-consecutive 1-bits"));
        }
        if row < min {
            return self.say(EINVAL, &format!("Need at least {min} bits in the mask"));
        }
        if self.overlaps(group, schema, domain, mask, true) {
            return self.say(EINVAL, "Overlaps with exclusive group");
        }
        if self.groups[group].mode != Mode::Shareable && self.overlaps(group, schema, domain, mask, false) {
            return self.say(EINVAL, "Overlaps with other group");
        }
        Ok(mask)
    }

    /// Returns `true` if the mask overlaps with other groups: with exclusive ones only, or else with any group and with
    /// hardware's ways.
    fn overlaps(&self, group: usize, schema: usize, domain: u32, mask: u32, exclusive: bool) -> bool {
        let cache = &self.machine.caches[self.schemas[schema].cache.unwrap()];
        let both = [Some(schema), self.schemas[schema].peer].into_iter().flatten();
        if !exclusive && mask & cache.shareable != 0 {
            return true;
        }
        both.into_iter().any(|schema| {
            self.groups.iter().enumerate().any(|(other, it)| {
                let counts = if exclusive {
                    it.mode == Mode::Exclusive
                } else {
                    it.mode != Mode::Locksetup
                };
                other != group && counts && self.value(schema, domain, it.closid) & mask != 0
            })
        })
    }

    fn write_mode(&mut self, group: usize, text: &str) -> Result<(), Errno> {
        match (text, self.groups[group].mode) {
            ("shareable", _) => self.groups[group].mode = Mode::Shareable,
            ("exclusive", Mode::Exclusive) => {}
            ("exclusive", _) => {
                let closid = self.groups[group].closid;
                for schema in 0..self.schemas.len() {
                    if self.schemas[schema].cache.is_none() {
                        continue;
                    }
                    for domain in self.schemas[schema].domains.clone() {
                        let mask = self.value(schema, domain, closid);
                        if self.overlaps(group, schema, domain, mask, false) {
                            return self.say(EINVAL, "Schemata overlaps");
                        }
                    }
                }
                self.groups[group].mode = Mode::Exclusive;
            }
            // The kernel supports pseudo-locking only on certain processors, which this machine has not.
            ("pseudo-locksetup", _) => {
                return self.say(EINVAL, "Pseudo-locking not supported on this platform");
            }
            _ => return self.say(EINVAL, "Unknown or unsupported mode"),
        }
        Ok(())
    }

    fn write_tasks(&mut self, group: usize, mon: Option<usize>, text: &str, writer: i32) -> Result<(), Errno> {
        let text = text.split('\n').next().unwrap_or_default();
        for number in text.split(',').filter(|_| !text.is_empty()) {
            let number = number.trim();
            let task = match number.parse::<i32>() {
                Err(_) => {
                    return self.say(EINVAL, &format!("Task list parsing error pid {number}"));
                }
                Ok(task) if task < 0 => return self.say(EINVAL, &format!("Invalid pid {task}")),
                Ok(0) => writer,
                Ok(task) => task,
            };
            let fails = format!("Error while processing task {task}");
            if !fs::exists(format!("/proc/{task}")).unwrap() {
                return self.say(ESRCH, &format!("No task {task}\n{fails}"));
            }
            let now = self
                .groups
                .iter()
                .skip(1)
                .position(|group| group.tasks.contains(&task))
                .map_or(0, |at| at + 1);
            if mon.is_some() && now != group {
                return self.say(EINVAL, &format!("Can't move task to different control group\n{fails}"));
            }
            let was_mon = self.groups[now].mons.iter().any(|mon| mon.tasks.contains(&task));
            if now == group && mon.is_none() && !was_mon {
                self.groups[group].tasks.insert(task);
                continue;
            }
            for other in &mut self.groups {
                other.mons.iter_mut().for_each(|mon| _ = mon.tasks.remove(&task));
                other.tasks.remove(&task);
            }
            if group != 0 {
                self.groups[group].tasks.insert(task);
            }
            if let Some(mon) = mon {
                self.groups[group].mons[mon].tasks.insert(task);
            }
        }
        Ok(())
    }

    fn write_cores(&mut self, group: usize, mon: Option<usize>, cores: BTreeSet<u32>) -> Result<(), Errno> {
        if cores.iter().any(|core| *core >= self.machine.cores) {
            return self.say(EINVAL, "Can only assign online CPUs");
        }
        if let Some(mon) = mon {
            if !cores.is_subset(&self.groups[group].cores) {
                return self.say(EINVAL, "Can only add CPUs to mongroup that belong to parent");
            }
            for other in &mut self.groups[group].mons {
                other.cores.retain(|core| !cores.contains(core));
            }
            self.groups[group].mons[mon].cores = cores;
            return Ok(());
        }
        if group == 0 && !self.groups[0].cores.is_subset(&cores) {
            return self.say(EINVAL, "Can't drop CPUs from default group");
        }
        let dropped: Vec<u32> = self.groups[group].cores.difference(&cores).copied().collect();
        self.groups[0].cores.extend(dropped);
        for (index, other) in self.groups.iter_mut().enumerate() {
            if index == group {
                other.mons.iter_mut().for_each(|mon| mon.cores.clear());
            } else {
                other.cores.retain(|core| !cores.contains(core));
                other
                    .mons
                    .iter_mut()
                    .for_each(|mon| mon.cores.retain(|core| !cores.contains(core)));
            }
        }
        self.groups[group].cores = cores;
        Ok(())
    }
}

fn cores_of_list(text: &str) -> Option<BTreeSet<u32>> {
    let mut cores = BTreeSet::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last > 4096 {
            return None;
        }
        cores.extend(first..=last);
    }
    Some(cores)
}
