//! Readable files of the model.

use std::fs;

use libc::ENOENT;

use super::{Errno, Kernel, Mode, Node, Schema};

impl Kernel {
    fn info_files(&self, directory: &str) -> Option<Vec<&'static str>> {
        if directory == "L3_MON" && self.machine.rmids.is_some() {
            return Some(vec!["num_rmids", "mon_features", "max_threshold_occupancy"]);
        }
        let schema = self.schemas.iter().find(|schema| schema.name == directory)?;
        Some(match schema.cache {
            Some(_) => vec![
                "num_closids",
                "cbm_mask",
                "min_cbm_bits",
                "shareable_bits",
                "bit_usage",
                "sparse_masks",
            ],
            None => vec!["num_closids", "min_bandwidth", "bandwidth_gran", "delay_linear"],
        })
    }

    /// Returns the node at a path.
    pub fn node(&self, path: &str) -> Option<Node> {
        let directory = |names: Vec<&str>| Some(Node::Directory(names.into_iter().map(str::to_owned).collect()));
        if let Some(inner) = path.strip_prefix("info") {
            let inner = inner.trim_start_matches('/');
            if inner.is_empty() {
                let mut names = vec!["last_cmd_status"];
                names.extend(self.schemas.iter().map(|schema| schema.name.as_str()));
                names.extend(self.machine.rmids.map(|_| "L3_MON"));
                return directory(names);
            }
            return match inner.split_once('/') {
                None if inner == "last_cmd_status" => Some(Node::File(false)),
                None => directory(self.info_files(inner)?),
                Some((resource, file)) => self
                    .info_files(resource)?
                    .contains(&file)
                    .then_some(Node::File(file == "max_threshold_occupancy")),
            };
        }
        let (group, mon, inner) = self.place(path)?;
        let monitored = self.machine.rmids.is_some();
        if inner.is_empty() {
            let mut names = vec!["tasks", "cpus", "cpus_list"];
            names.extend(monitored.then_some("mon_data"));
            if mon.is_none() {
                names.extend(monitored.then_some("mon_groups"));
                if !self.schemas.is_empty() {
                    names.extend(["schemata", "size", "mode"]);
                }
                if group == 0 {
                    names.push("info");
                    names.extend(self.groups[1..].iter().map(|group| group.name.as_str()));
                }
            }
            return directory(names);
        }
        match inner {
            "tasks" | "cpus" | "cpus_list" => Some(Node::File(true)),
            "schemata" | "mode" if mon.is_none() && !self.schemas.is_empty() => Some(Node::File(true)),
            "size" if mon.is_none() && !self.schemas.is_empty() => Some(Node::File(false)),
            "mon_groups" if mon.is_none() && monitored => {
                directory(self.groups[group].mons.iter().map(|mon| mon.name.as_str()).collect())
            }
            _ if !monitored => None,
            "mon_data" => {
                let domains = &self.machine.caches[0].domains;
                Some(Node::Directory(
                    domains.iter().map(|id| format!("mon_L3_{id:02}")).collect(),
                ))
            }
            _ => {
                let (domain, event) = inner
                    .strip_prefix("mon_data/mon_L3_")?
                    .split_once('/')
                    .unwrap_or((inner.strip_prefix("mon_data/mon_L3_")?, ""));
                let known = self.machine.caches[0]
                    .domains
                    .iter()
                    .any(|id| format!("{id:02}") == domain);
                let events = vec!["llc_occupancy", "mbm_total_bytes", "mbm_local_bytes"];
                match event {
                    _ if !known => None,
                    "" => directory(events),
                    event => events.contains(&event).then_some(Node::File(false)),
                }
            }
        }
    }

    pub fn read(&self, path: &str) -> Result<String, Errno> {
        if let Some(inner) = path.strip_prefix("info/") {
            return self.read_info(inner).ok_or(ENOENT);
        }
        let (group, mon, inner) = self.place(path).ok_or(ENOENT)?;
        let group = &self.groups[group];
        let lines = |show: &dyn Fn(usize, u32) -> String| {
            let line = |(index, schema): (usize, &Schema)| {
                let values = schema
                    .domains
                    .iter()
                    .map(|&domain| format!("{domain}={}", show(index, domain)));
                format!("{:>6}:{}\n", schema.name, values.collect::<Vec<_>>().join(";"))
            };
            self.schemas.iter().enumerate().map(line).collect::<String>()
        };
        let cores = mon.map_or(&group.cores, |mon| &group.mons[mon].cores);
        Ok(match inner {
            "schemata" if group.mode == Mode::Locksetup => self
                .schemas
                .iter()
                .map(|schema| format!("{}:uninitialized\n", schema.name))
                .collect(),
            "schemata" => lines(&|schema, domain| {
                let value = self.value(schema, domain, group.closid);
                match self.schemas[schema].cache {
                    Some(_) => format!("{value:x}"),
                    None => format!("{value:>4}"),
                }
            }),
            "size" => lines(&|schema, domain| {
                let value = self.value(schema, domain, group.closid);
                match self.schemas[schema].cache.map(|cache| &self.machine.caches[cache]) {
                    Some(cache) => (cache.size / cache.length * value.count_ones()).to_string(),
                    None => value.to_string(),
                }
            }),
            "mode" => match group.mode {
                Mode::Shareable => "shareable\n".to_owned(),
                Mode::Exclusive => "exclusive\n".to_owned(),
                Mode::Locksetup => "pseudo-locksetup\n".to_owned(),
            },
            "tasks" => {
                let is_in = |task: &i32| match mon {
                    Some(mon) => group.mons[mon].tasks.contains(task),
                    None if group.closid == 0 => self.groups[1..].iter().all(|group| !group.tasks.contains(task)),
                    None => group.tasks.contains(task),
                };
                running()
                    .into_iter()
                    .filter(is_in)
                    .map(|task| format!("{task}\n"))
                    .collect()
            }
            "cpus_list" => {
                let mut list: Vec<(u32, u32)> = Vec::new();
                for &core in cores {
                    match list.last_mut() {
                        Some((_, last)) if *last + 1 == core => *last = core,
                        _ => list.push((core, core)),
                    }
                }
                let range = |(first, last): (u32, u32)| match first == last {
                    true => first.to_string(),
                    false => format!("{first}-{last}"),
                };
                format!("{}\n", list.into_iter().map(range).collect::<Vec<_>>().join(","))
            }
            "cpus" => format!("{:x}\n", cores.iter().fold(0u64, |mask, core| mask | 1 << core)),
            _ => self.counters.get(path).cloned().unwrap_or_else(|| "0\n".to_owned()),
        })
    }

    fn read_info(&self, path: &str) -> Option<String> {
        if path == "last_cmd_status" {
            return Some(if self.status.is_empty() {
                "ok\n".to_owned()
            } else {
                self.status.clone()
            });
        }
        let (resource, file) = path.split_once('/')?;
        if resource == "L3_MON" {
            return Some(match file {
                "num_rmids" => format!("{}\n", self.machine.rmids?),
                "mon_features" => {
                    "llc_occupancy\nmbm_total_bytes\nmbm_total_bytes_config\nmbm_local_bytes\n".to_owned()
                }
                _ => "65536\n".to_owned(),
            });
        }
        let index = self.schemas.iter().position(|schema| schema.name == resource)?;
        let schema = &self.schemas[index];
        if file == "num_closids" {
            return Some(format!("{}\n", schema.closids));
        }
        let Some(cache) = schema.cache.map(|cache| &self.machine.caches[cache]) else {
            let (_, min, step) = self.machine.memory?;
            return Some(match file {
                "min_bandwidth" => format!("{min}\n"),
                "bandwidth_gran" => format!("{step}\n"),
                _ => "1\n".to_owned(),
            });
        };
        Some(match file {
            "cbm_mask" => format!("{:x}\n", schema.full),
            "min_cbm_bits" => format!("{}\n", cache.min),
            "shareable_bits" => format!("{:x}\n", cache.shareable),
            "sparse_masks" => format!("{}\n", u32::from(cache.sparse)),
            _ => {
                let usage = |&domain: &u32| {
                    let of = |mode| {
                        let groups = self.groups.iter().filter(move |group| group.mode == mode);
                        groups.fold(0, |all, group| all | self.value(index, domain, group.closid))
                    };
                    let (shared, exclusive) = (of(Mode::Shareable), of(Mode::Exclusive));
                    let letter = |bit: u32| {
                        let is_in = |mask: u32| mask >> bit & 1 == 1;
                        match (is_in(cache.shareable), is_in(shared)) {
                            (true, true) => 'X',
                            (true, false) => 'H',
                            (false, true) => 'S',
                            (false, false) if is_in(exclusive) => 'E',
                            _ => '0',
                        }
                    };
                    format!("{domain}={}", (0..cache.length).rev().map(letter).collect::<String>())
                };
                format!("{}\n", schema.domains.iter().map(usage).collect::<Vec<_>>().join(";"))
            }
        })
    }

    /// Returns the allocation and members of all groups, without the default group's tasks.
    pub fn snapshot(&self) -> String {
        let groups = self.groups.iter().map(|group| {
            let name = &group.name;
            let read = |file: &str| self.read(format!("{name}/{file}").trim_start_matches('/')).unwrap();
            let mons: Vec<_> = group
                .mons
                .iter()
                .map(|mon| (&mon.name, &mon.tasks, &mon.cores))
                .collect();
            let texts = [read("schemata"), read("mode"), read("cpus_list")].concat();
            format!(
                "[{name}] {:?} {mons:?}\n{texts}",
                if name.is_empty() { None } else { Some(&group.tasks) }
            )
        });
        groups.collect()
    }
}

/// Returns the threads of this machine.
fn running() -> Vec<i32> {
    let numbers = |path: String| {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
    };
    numbers("/proc".to_owned())
        .flat_map(|process| numbers(format!("/proc/{process}/task")))
        .collect()
}
