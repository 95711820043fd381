//! Objects as clang compiles them for BPF: sections, symbols and relocations of an ELF file.
//!
//! Everything in the file is untrusted. Offsets and sizes are checked by the ELF reader or here; nothing is allocated
//! by sizes that the file states, but for sections that it holds.

use super::btf::Btf;
use super::error::ProgramError;
use super::instruction::{Instruction, MAX_INSTRUCTIONS, code::LD_IMM64};
use super::maps::{MAX_MAPS, MAX_VALUE, MapKind, MapSpec};
use super::memory::{MAPS, values_of};
use super::program::Program;
use object::elf::{EM_BPF, ET_REL, R_BPF_64_32, R_BPF_64_64, SHF_EXECINSTR};
use object::read::elf::ElfFile64;
use object::{
    LittleEndian, Object, ObjectSection, ObjectSymbol, RelocationFlags, RelocationTarget, SectionFlags, SectionIndex,
    SectionKind, SymbolKind,
};
use std::collections::BTreeMap;
use std::ops::Range;

/// Maximum size of an object in bytes.
pub const MAX_OBJECT: usize = 4 << 20;

type Elf<'a> = ElfFile64<'a, LittleEndian>;
type Section<'a, 'f> = object::read::elf::ElfSection64<'a, 'f, LittleEndian>;

/// Parts of an object while its program is linked.
struct Linker<'a, 'f> {
    elf: &'f Elf<'a>,
    /// Sections with code, and the range of their instructions.
    code: Vec<(SectionIndex, Range<usize>)>,
    instructions: Vec<Instruction>,
    maps: Vec<MapSpec>,
    /// Reasons against instructions, if they can be reached.
    refused: BTreeMap<usize, String>,
}

/// Reads the program in a section of an object. `function` is the name of its function, which may be left out if there
/// is only one.
///
/// # Errors
/// The expected content of the object.
pub fn parse_object(bytes: &[u8], section: &str, function: Option<&str>) -> Result<Program, ProgramError> {
    if bytes.len() > MAX_OBJECT {
        return Err(ProgramError::whole(format!("expected at most {MAX_OBJECT} bytes")));
    }
    let not_elf = |why| {
        let how = "as clang -O2 -g -target bpf -c compiles it";
        ProgramError::whole(format!(
            "expected a 64-bit little-endian ELF object, {how}, found another file ({why})"
        ))
    };
    let elf = Elf::parse(bytes).map_err(not_elf)?;
    let header = elf.elf_header();
    let (machine, kind) = (header.e_machine.get(LittleEndian), header.e_type.get(LittleEndian));
    if machine != EM_BPF || kind != ET_REL {
        return Err(ProgramError::whole(format!(
            "expected an object for BPF (machine {EM_BPF}, type {ET_REL}), found machine {machine}, type {kind}"
        )));
    }
    let main = find_section(&elf, section)?;
    let mut linker = Linker {
        elf: &elf,
        code: Vec::new(),
        instructions: Vec::new(),
        maps: Vec::new(),
        refused: BTreeMap::new(),
    };
    linker.add_code(&main)?;
    // Functions that are not inlined.
    if let Some(text) = elf.section_by_name(".text").filter(|text| text.index() != main.index()) {
        linker.add_code(&text)?;
    }
    linker.read_maps()?;
    for (index, range) in linker.code.clone() {
        linker.relocate(index, range)?;
    }
    let entry = entry(&elf, main.index(), (section, function))?;
    Program::new(&linker.instructions, entry, linker.maps, &linker.refused)
}

fn is_code(section: &Section<'_, '_>) -> bool {
    matches!(section.flags(), SectionFlags::Elf { sh_flags } if sh_flags & u64::from(SHF_EXECINSTR) != 0)
        && section.size() > 0
}

fn find_section<'a, 'f>(elf: &'f Elf<'a>, name: &str) -> Result<Section<'a, 'f>, ProgramError> {
    let found = elf
        .sections()
        .find(|section| is_code(section) && section.name() == Ok(name));
    found.ok_or_else(|| {
        let names = elf.sections().filter(is_code).filter_map(|section| section.name().ok());
        let names: Vec<_> = names.take(8).collect();
        let names = if names.is_empty() {
            "none with code".to_owned()
        } else {
            names.join(", ")
        };
        ProgramError::whole(format!("expected the section {name}, found {names}"))
    })
}

/// Index of the first instruction of the program's function.
fn entry(elf: &Elf<'_>, main: SectionIndex, (section, name): (&str, Option<&str>)) -> Result<usize, ProgramError> {
    let functions = || {
        let functions = elf
            .symbols()
            .filter(|symbol| symbol.section_index() == Some(main) && symbol.is_global());
        functions.filter(|symbol| symbol.kind() == SymbolKind::Text)
    };
    let named = |symbol: &object::read::elf::ElfSymbol64<'_, '_, LittleEndian>| {
        name.is_none_or(|name| symbol.name() == Ok(name))
    };
    let mut found = functions().filter(named);
    match (found.next(), found.next()) {
        (Some(symbol), None) => Ok((symbol.address() / 8) as usize),
        // An object without symbols.
        (None, _) if name.is_none() => Ok(0),
        _ => {
            let names: Vec<_> = functions().filter_map(|symbol| symbol.name().ok()).take(8).collect();
            let wanted = name.map_or_else(
                || "one function, or its name in function:".to_owned(),
                |name| format!("the function {name}"),
            );
            Err(ProgramError::whole(format!(
                "section {section}: expected {wanted}, found {}",
                names.join(", ")
            )))
        }
    }
}

impl<'a, 'f> Linker<'a, 'f> {
    fn add_code(&mut self, section: &Section<'a, 'f>) -> Result<(), ProgramError> {
        let name = section.name().unwrap_or("?");
        let wrong = |why: String| ProgramError::whole(format!("section {name}: {why}"));
        let bytes = section.data().map_err(|why| wrong(why.to_string()))?;
        let (instructions, rest) = bytes.as_chunks::<8>();
        if !rest.is_empty() || instructions.len() + self.instructions.len() > MAX_INSTRUCTIONS {
            let found = bytes.len();
            return Err(wrong(format!(
                "expected at most {MAX_INSTRUCTIONS} instructions of 8 bytes, found {found} bytes"
            )));
        }
        let base = self.instructions.len();
        self.code.push((section.index(), base..base + instructions.len()));
        self.instructions
            .extend(instructions.iter().map(|bytes| Instruction::from_bytes(*bytes)));
        Ok(())
    }

    /// Reads the definitions of maps: those in BTF, and those of the old section `maps`.
    fn read_maps(&mut self) -> Result<(), ProgramError> {
        let data = |name: &str| self.elf.section_by_name(name).and_then(|section| section.data().ok());
        if self.elf.section_by_name(".maps").is_some() {
            let missing = "section .maps: expected a section .BTF with its types: compile with -g";
            let btf = data(".BTF").ok_or_else(|| ProgramError::whole(missing))?;
            let maps = Btf::parse(btf).and_then(|btf| btf.maps(MAX_MAPS));
            self.maps = maps.map_err(|why| ProgramError::whole(format!("section .BTF: {why}")))?;
        }
        let Some(old) = self.elf.section_by_name("maps") else {
            return Ok(());
        };
        let bytes = old.data().unwrap_or_default();
        for symbol in self
            .elf
            .symbols()
            .filter(|symbol| symbol.section_index() == Some(old.index()))
        {
            let Some(name) = symbol.name().ok().filter(|name| !name.is_empty()) else {
                continue;
            };
            let wrong = |why: String| ProgramError::whole(format!("section maps: map {name}: {why}"));
            if self.maps.len() == MAX_MAPS {
                return Err(wrong(format!("expected at most {MAX_MAPS} maps")));
            }
            let start = usize::try_from(symbol.address()).ok();
            let definition = start.and_then(|start| bytes.get(start..)?.first_chunk::<20>());
            let definition = definition.ok_or_else(|| wrong("expected a definition of 20 bytes".to_owned()))?;
            let (words, _) = definition.as_chunks::<4>();
            let mut numbers = [0; 5];
            for (number, word) in numbers.iter_mut().zip(words) {
                *number = u32::from_le_bytes(*word);
            }
            self.maps.push(MapSpec::new(name, numbers).map_err(wrong)?);
        }
        Ok(())
    }

    /// Applies the relocations of a section to its instructions, which are those in `range`.
    fn relocate(&mut self, index: SectionIndex, range: Range<usize>) -> Result<(), ProgramError> {
        let section = self
            .elf
            .section_by_index(index)
            .map_err(|why| ProgramError::whole(why.to_string()))?;
        for (offset, relocation) in section.relocations() {
            let at = range.start.saturating_add((offset / 8) as usize);
            if !offset.is_multiple_of(8) || !range.contains(&at) {
                let name = section.name().unwrap_or("?");
                let why = format!("section {name}: a relocation at offset {offset}, where no instruction begins");
                return Err(ProgramError::whole(why));
            }
            let RelocationFlags::Elf { r_type } = relocation.flags() else {
                continue;
            };
            if let Err(why) = self.relocate_one(at, r_type, relocation.target()) {
                self.refused.insert(at, why);
            }
        }
        Ok(())
    }

    fn relocate_one(&mut self, at: usize, kind: u32, target: RelocationTarget) -> Result<(), String> {
        let elf = self.elf;
        let symbol = match target {
            RelocationTarget::Symbol(index) => elf.symbol_by_index(index).map_err(|why| why.to_string())?,
            _ => return Err("a relocation without a symbol".to_owned()),
        };
        let name = symbol.name().unwrap_or_default();
        let Some(section) = symbol.section_index() else {
            return Err(format!("it refers to {name}, which the object does not define"));
        };
        let code = self.code.iter().find(|(other, _)| *other == section);
        match (kind, code) {
            (R_BPF_64_32, Some((_, range))) => {
                // The constant is the offset from the symbol in instructions, less one.
                let call = &mut self.instructions[at];
                let offset = symbol.address() as i64 / 8 + i64::from(call.constant) + 1;
                let over = range.start as i64 + offset - (at as i64 + 1);
                call.constant = i32::try_from(over).map_err(|_| format!("a call of {name} beyond the program"))?;
                Ok(())
            }
            (R_BPF_64_64, Some(_)) => Err(format!("the address of the function {name}: only calls are supported")),
            (R_BPF_64_64, None) if self.instructions[at].code == LD_IMM64 => {
                let offset = self.instructions[at].constant as u32;
                let address = self.address(section, (name, symbol.address()), offset)?;
                let second = at + 1;
                if second >= self.instructions.len() {
                    return Err("half of a constant".to_owned());
                }
                // Its kind, as the source register, is for the kernel.
                let first = &mut self.instructions[at];
                first.registers &= 0x0f;
                first.constant = address as u32 as i32;
                self.instructions[second].constant = (address >> 32) as i32;
                Ok(())
            }
            _ => Err(format!("a relocation of type {kind} to {name}")),
        }
    }

    /// Address of a map, or of a global variable at an offset from the symbol's value.
    fn address(&mut self, section: SectionIndex, (symbol, value): (&str, u64), offset: u32) -> Result<u64, String> {
        let section = self.elf.section_by_index(section).map_err(|why| why.to_string())?;
        let name = section.name().unwrap_or_default();
        if matches!(name, "maps" | ".maps") {
            let map = self.maps.iter().position(|map| map.name == symbol);
            let map =
                map.ok_or_else(|| format!("it refers to the map {symbol}, which section {name} does not define"))?;
            return Ok(MAPS + map as u64);
        }
        let is_read_only = match section.kind() {
            SectionKind::ReadOnlyData | SectionKind::ReadOnlyString => true,
            SectionKind::Data | SectionKind::UninitializedData => false,
            _ => return Err(format!("it refers to {symbol} in section {name}")),
        };
        let is_globals = |map: &MapSpec| matches!(map.kind, MapKind::Globals { .. }) && map.name == name;
        let map = match self.maps.iter().position(is_globals) {
            Some(map) => map,
            None if self.maps.len() == MAX_MAPS => return Err(format!("more than {MAX_MAPS} maps and sections")),
            None => {
                let size = u32::try_from(section.size())
                    .ok()
                    .filter(|size| (1..=MAX_VALUE).contains(size));
                let size = size.ok_or_else(|| {
                    format!(
                        "section {name}: expected 1 to {MAX_VALUE} bytes, found {}",
                        section.size()
                    )
                })?;
                let initial = section.data().map_err(|why| why.to_string())?;
                self.maps.push(MapSpec::globals(name, is_read_only, size, initial));
                self.maps.len() - 1
            }
        };
        let inside = u32::try_from(value).ok().and_then(|value| value.checked_add(offset));
        let inside = inside.filter(|inside| *inside < self.maps[map].value_size);
        Ok(values_of(
            map,
            inside.ok_or_else(|| format!("{symbol} is outside of section {name}"))?,
        ))
    }
}
