//! A worker's instance of a module: its memory, with the area for packets, and calls into it.

use super::description::Description;
use super::error::{Fault, WasmError};
use super::layout::{FIELD_BYTES, FRAMES_BYTES, MESSAGE_BYTES, area, area_bytes, batch_bytes, frames, u32_at};
use super::program::{FUNCTION, MEMORY, Program, TABLE};
use tailwater_sdk::abi;
use wasmi::{
    Instance, Memory, Nullable, Ref, Store, StoreLimits, StoreLimitsBuilder, Table, TypedFunc, Val, WasmParams,
    WasmResults,
};

/// Instructions that the set-up of an instance may take.
pub const SETUP_INSTRUCTIONS: u64 = 16 << 20;
/// Maximum number of functions that a module's pointers refer to.
const MAX_TABLE: usize = 65_536;
/// Bytes of memory that are cleared in the time of an instruction.
const BYTES_PER_INSTRUCTION: u64 = 16;
const PAGE: usize = 65_536;

/// Limits of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Instructions of a call, for each of its packets.
    pub instructions: u32,
    /// Memory of the module in bytes, without the area for packets.
    pub memory: usize,
    /// Instructions of the set-up: initialisation, `configure` and `start`.
    pub setup: u64,
}

/// Limits that the engine enforces, with so many bytes of memory.
fn bounds(memory: usize) -> StoreLimits {
    let bounds = StoreLimitsBuilder::new().memory_size(memory).table_elements(MAX_TABLE);
    // Modules of some compilers have tables of other references.
    bounds.instances(1).memories(1).tables(4).build()
}

/// Instance of a module, configured and started.
pub struct Machine {
    store: Store<StoreLimits>,
    memory: Memory,
    process: TypedFunc<(u32, u32), i32>,
    flows_ended: Option<TypedFunc<(u32, u32, u32, u32), ()>>,
    explain: Option<TypedFunc<(u32, u32, u32), ()>>,
    /// The function's own pointer to the instance.
    instance: u32,
    /// Address of the area for packets.
    base: u32,
    area_bytes: usize,
    setup_cost: u64,
}

impl Machine {
    /// Creates an instance, and passes it its configuration, a JSON object. Returns it with its description.
    ///
    /// # Errors
    /// The module's description is wrong, it rejects the configuration, needs too much memory or time, or a call ends
    /// in a trap.
    pub fn new(program: &Program, config: &str, limits: &Limits) -> Result<(Machine, Description), WasmError> {
        let mut store = Store::new(program.module.engine(), bounds(limits.memory));
        store.limiter(|bounds| bounds);
        let failed = |call: &'static str| {
            move |error: wasmi::Error| WasmError::Setup {
                call,
                fault: error.into(),
            }
        };
        let most = limits.memory;
        if let Some(found) = initial_memory(program).filter(|found| *found > most) {
            return Err(WasmError::Memory { most, found });
        }
        store.set_fuel(limits.setup).map_err(failed("set-up"))?;
        let instance = Instance::new(&mut store, &program.module, &[]).map_err(failed("initialisation"))?;
        // The program checked the exports.
        let missing = || WasmError::description("expected its exports");
        let memory = instance.get_memory(&store, MEMORY).ok_or_else(missing)?;
        let table = instance.get_table(&store, TABLE).ok_or_else(missing)?;
        let address = instance.get_global(&store, FUNCTION).map(|global| global.get(&store));
        let Some(Val::I32(address)) = address else {
            return Err(missing());
        };
        let description = Description::read(memory.data(&store), address as u32)?;
        let (base, area_bytes) = add_area(&mut store, memory, limits.memory, &description)?;
        let calls = Calls { table };
        let process = calls.find(&store, description.process, "process", "(i32, i32) -> i32")?;
        let flows_ended = match description.flows_ended {
            0 => None,
            index => Some(calls.find(&store, index, "flows_ended", "(i32, i32, i32, i32)")?),
        };
        let explain = match description.explain {
            0 => None,
            index => Some(calls.find(&store, index, "explain", "(i32, i32, i32)")?),
        };
        let mut machine = Machine {
            store,
            memory,
            process,
            flows_ended,
            explain,
            instance: 0,
            base,
            area_bytes,
            setup_cost: 0,
        };
        let shared = machine.configure(&calls, &description, config)?;
        machine.instance = match description.start {
            0 => shared,
            index => {
                let start: TypedFunc<u32, u32> = calls.find(&machine.store, index, "start", "(i32) -> i32")?;
                let started = start.call(&mut machine.store, shared).map_err(failed("start"))?;
                if started == 0 {
                    return Err(WasmError::description("start: expected an instance, found NULL"));
                }
                started
            }
        };
        let used = limits.setup.saturating_sub(machine.store.get_fuel().unwrap_or(0));
        machine.setup_cost = used + machine.memory_bytes() as u64 / BYTES_PER_INSTRUCTION;
        Ok((machine, description))
    }

    /// Calls `configure`. Returns the pointer that it sets.
    fn configure(&mut self, calls: &Calls, description: &Description, config: &str) -> Result<u32, WasmError> {
        let of_all = |message: String| WasmError::Config {
            field: String::new(),
            message,
        };
        let name = description.name;
        if description.configure == 0 {
            return match config {
                "{}" => Ok(0),
                _ => Err(of_all(format!("expected none, since {name} takes none"))),
            };
        }
        let text = frames(description.state_bytes);
        // With its terminating zero byte, which the area has.
        if config.len() >= FRAMES_BYTES {
            return Err(of_all(format!("expected less than {FRAMES_BYTES} bytes as JSON")));
        }
        self.area_mut()[text..text + config.len()].copy_from_slice(config.as_bytes());
        let signature = "(i32, i32, i32, i32) -> i32";
        let configure: TypedFunc<(u32, u32, u32, u32), i32> =
            calls.find(&self.store, description.configure, "configure", signature)?;
        let [shared, error] = [area::BATCH, area::PACKETS].map(|at| self.base + at as u32);
        let arguments = (self.base + text as u32, config.len() as u32, shared, error);
        let code = configure.call(&mut self.store, arguments);
        let code = code.map_err(|error| WasmError::Setup {
            call: "configure",
            fault: error.into(),
        })?;
        let area = self.area();
        if code == 0 {
            let shared = u32_at(area, area::BATCH).unwrap_or(0);
            self.area_mut().fill(0);
            return Ok(shared);
        }
        let (message, field) = area[area::PACKETS..][..MESSAGE_BYTES + FIELD_BYTES].split_at(MESSAGE_BYTES);
        let message = match text_up_to_nul(message) {
            message if message.is_empty() => format!("{name} rejected it (code {code}) without a message"),
            message => message,
        };
        Err(WasmError::Config {
            field: text_up_to_nul(field),
            message,
        })
    }

    /// Area for packets.
    #[inline]
    pub(super) fn area_mut(&mut self) -> &mut [u8] {
        // A memory never shrinks.
        let base = self.base as usize;
        &mut self.memory.data_mut(&mut self.store)[base..base + self.area_bytes]
    }

    fn area(&self) -> &[u8] {
        let base = self.base as usize;
        &self.memory.data(&self.store)[base..base + self.area_bytes]
    }

    /// Address of an offset in the area.
    #[inline]
    pub(super) fn address(&self, offset: usize) -> u32 {
        self.base + offset as u32
    }

    /// Size of the memory in bytes, with the area for packets.
    pub fn memory_bytes(&self) -> usize {
        self.memory.data(&self.store).len()
    }

    /// Instructions of creating such an instance, with the time of clearing its memory.
    pub fn setup_cost(&self) -> u64 {
        self.setup_cost
    }

    /// Processes the first `count` packets of the area, in at most `most` instructions. Returns their number.
    ///
    /// # Errors
    /// The call was ended, or failed. The instance must not be used again.
    pub(super) fn process(&mut self, count: u32, most: u64) -> Result<u64, Fault> {
        let batch = batch_bytes(self.base, count);
        self.area_mut()[area::BATCH..][..batch.len()].copy_from_slice(&batch);
        self.store.set_fuel(most)?;
        let arguments = (self.instance, self.address(area::BATCH));
        match self.process.call(&mut self.store, arguments)? {
            0 => Ok(most - self.store.get_fuel()?.min(most)),
            code => Err(Fault::Failed(code)),
        }
    }

    /// Reports an ended flow, which the area holds, in at most `most` instructions.
    ///
    /// # Errors
    /// Same as [`process`](Machine::process).
    pub(super) fn flow_ended(&mut self, most: u64) -> Result<(), Fault> {
        let Some(flows_ended) = self.flows_ended else {
            return Ok(());
        };
        let pointers = [area::KEYS, area::STATES].map(|at| self.address(at).to_le_bytes());
        self.area_mut()[area::BATCH..][..8].copy_from_slice(pointers.as_flattened());
        self.store.set_fuel(most)?;
        let (flow, counters) = (self.address(area::BATCH), self.address(area::COUNTERS));
        Ok(flows_ended.call(&mut self.store, (self.instance, flow, 1, counters))?)
    }
}

/// Explanations.
impl Machine {
    /// Explains the first packet of the area, in at most `most` instructions. Returns the bytes that the function
    /// wrote; the text ends at the first zero byte.
    ///
    /// # Errors
    /// Same as [`process`](Machine::process).
    pub(super) fn explain(&mut self, most: u64) -> Result<&[u8], Fault> {
        let Some(explain) = self.explain else {
            return Ok(&[]);
        };
        self.area_mut()[area::COUNTERS..][..abi::MAX_EXPLANATION].fill(0);
        self.store.set_fuel(most)?;
        let (packet, text) = (self.address(area::PACKETS), self.address(area::COUNTERS));
        explain.call(&mut self.store, (self.instance, packet, text))?;
        Ok(&self.area()[area::COUNTERS..][..abi::MAX_EXPLANATION])
    }
}

/// Memory with which the module starts, in bytes.
fn initial_memory(program: &Program) -> Option<usize> {
    let wasmi::ExternType::Memory(memory) = program.module.get_export(MEMORY)? else {
        return None;
    };
    Some((memory.minimum() as usize).saturating_mul(PAGE))
}

/// Adds the area for packets behind the module's own memory. Returns its address and size.
fn add_area(
    store: &mut Store<StoreLimits>,
    memory: Memory,
    limit: usize,
    description: &Description,
) -> Result<(u32, usize), WasmError> {
    let base = memory.data(&*store).len();
    let bytes = area_bytes(description.state_bytes);
    let pages = bytes.div_ceil(PAGE);
    *store.data_mut() = bounds(limit + pages * PAGE);
    let grown = memory.grow(&mut *store, pages as u64);
    match (grown, u32::try_from(base + bytes)) {
        (Ok(_), Ok(_)) => Ok((base as u32, bytes)),
        _ => Err(WasmError::description(format!(
            "expected a memory without maximum, or with one of {pages} pages more"
        ))),
    }
}

/// Functions that pointers refer to.
struct Calls {
    table: Table,
}

impl Calls {
    /// Finds the function of a pointer.
    fn find<P: WasmParams, R: WasmResults>(
        &self,
        store: &Store<StoreLimits>,
        index: u32,
        field: &str,
        signature: &str,
    ) -> Result<TypedFunc<P, R>, WasmError> {
        let wrong =
            |found: &str| WasmError::description(format!("{field}: expected a function {signature}, found {found}"));
        match self.table.get(store, index.into()) {
            Some(Ref::Func(Nullable::Val(function))) => function.typed(store).map_err(|_| wrong("one of another type")),
            _ => Err(wrong("a pointer to no function")),
        }
    }
}

/// Text up to its zero byte, in a line.
fn text_up_to_nul(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let text = String::from_utf8_lossy(&bytes[..end]);
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
