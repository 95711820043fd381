//! Definitions of maps in BTF, the type information that clang writes with `-g`: the part of it that the section
//! `.maps` needs.
//!
//! All numbers are untrusted. Type numbers are followed for at most [`MAX_DEPTH`] steps, so that no cycle keeps the
//! reader; nothing is allocated by sizes that the section states.

use super::maps::MapSpec;

/// Maximum number of types of an object.
const MAX_TYPES: usize = 65_536;
/// Maximum number of typedefs and qualifiers around a type.
const MAX_DEPTH: usize = 32;

const HEADER: usize = 24;
const MAGIC: u16 = 0xeb9f;

const KIND_INT: u8 = 1;
const KIND_PTR: u8 = 2;
const KIND_ARRAY: u8 = 3;
const KIND_STRUCT: u8 = 4;
const KIND_UNION: u8 = 5;
const KIND_ENUM: u8 = 6;
const KIND_TYPEDEF: u8 = 8;
const KIND_VOLATILE: u8 = 9;
const KIND_CONST: u8 = 10;
const KIND_RESTRICT: u8 = 11;
const KIND_FUNC_PROTO: u8 = 13;
const KIND_VAR: u8 = 14;
const KIND_DATASEC: u8 = 15;
const KIND_FLOAT: u8 = 16;
const KIND_DECL_TAG: u8 = 17;
const KIND_TYPE_TAG: u8 = 18;
const KIND_ENUM64: u8 = 19;

/// Types of an object.
pub(super) struct Btf<'a> {
    strings: &'a [u8],
    /// The types' bytes, each from its header on. Type `i` of the object is entry `i - 1`.
    types: Vec<&'a [u8]>,
}

fn word(bytes: &[u8], at: usize) -> Result<u32, String> {
    let word = bytes.get(at..).and_then(|rest| rest.first_chunk());
    word.map(|word| u32::from_le_bytes(*word))
        .ok_or_else(|| format!("expected four bytes at offset {at}, found its end"))
}

/// Number of bytes behind the 12 bytes of a type's header.
fn trailing_bytes(kind: u8, members: usize) -> Option<usize> {
    Some(match kind {
        KIND_INT | KIND_VAR | KIND_DECL_TAG => 4,
        KIND_ARRAY => 12,
        KIND_STRUCT | KIND_UNION | KIND_DATASEC | KIND_ENUM64 => 12 * members,
        KIND_ENUM | KIND_FUNC_PROTO => 8 * members,
        KIND_PTR..=KIND_TYPE_TAG => 0,
        _ => return None,
    })
}

impl<'a> Btf<'a> {
    /// Reads a section `.BTF`.
    ///
    /// # Errors
    /// The expected content.
    pub(super) fn parse(section: &'a [u8]) -> Result<Btf<'a>, String> {
        let magic = section.first_chunk().map(|magic| u16::from_le_bytes(*magic));
        if magic != Some(MAGIC) {
            return Err(format!("expected the magic number {MAGIC:#x}"));
        }
        let header = word(section, 4)? as usize;
        if header < HEADER {
            return Err(format!("expected a header of at least {HEADER} bytes, found {header}"));
        }
        let part = |at: usize| -> Result<&'a [u8], String> {
            let (start, length) = (word(section, at)? as usize, word(section, at + 4)? as usize);
            let part = header
                .checked_add(start)
                .and_then(|start| section.get(start..start.checked_add(length)?));
            part.ok_or_else(|| format!("expected {length} bytes at offset {start}, found its end"))
        };
        let (mut rest, strings) = (part(8)?, part(16)?);
        let mut types = Vec::new();
        while !rest.is_empty() {
            let info = word(rest, 4)?;
            let (kind, members) = ((info >> 24 & 0x1f) as u8, (info & 0xffff) as usize);
            let number = types.len() + 1;
            let behind =
                trailing_bytes(kind, members).ok_or_else(|| format!("type {number} has unknown kind {kind}"))?;
            let whole = rest.split_at_checked(12 + behind);
            let (this, others) = whole.ok_or_else(|| format!("type {number}: found the end of the types"))?;
            if number > MAX_TYPES {
                return Err(format!("expected at most {MAX_TYPES} types"));
            }
            types.push(this);
            rest = others;
        }
        Ok(Btf { strings, types })
    }

    /// Header and trailing bytes of a type: name, kind, members, size or type, and the rest.
    fn get(&self, number: u32) -> Result<Type<'a>, String> {
        let bytes = (number as usize).checked_sub(1).and_then(|at| self.types.get(at));
        let bytes = bytes.ok_or_else(|| format!("expected a type, found number {number} of {}", self.types.len()))?;
        Ok(Type {
            name: word(bytes, 0)?,
            kind: (word(bytes, 4)? >> 24 & 0x1f) as u8,
            value: word(bytes, 8)?,
            rest: &bytes[12..],
        })
    }

    /// Type without typedefs and qualifiers.
    fn resolve(&self, mut number: u32) -> Result<Type<'a>, String> {
        for _ in 0..MAX_DEPTH {
            let found = self.get(number)?;
            match found.kind {
                KIND_TYPEDEF | KIND_VOLATILE | KIND_CONST | KIND_RESTRICT | KIND_TYPE_TAG => number = found.value,
                _ => return Ok(found),
            }
        }
        Err(format!("expected at most {MAX_DEPTH} typedefs around a type"))
    }

    fn name(&self, at: u32) -> &'a str {
        let bytes = self.strings.get(at as usize..).unwrap_or_default();
        let name = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        std::str::from_utf8(name).unwrap_or("?")
    }

    /// Size of a type's values in bytes.
    fn size(&self, number: u32) -> Result<u32, String> {
        let (mut number, mut count) = (number, 1_u32);
        for _ in 0..MAX_DEPTH {
            let found = self.resolve(number)?;
            let size = match found.kind {
                KIND_INT | KIND_STRUCT | KIND_UNION | KIND_ENUM | KIND_FLOAT | KIND_ENUM64 => found.value,
                KIND_PTR => 8,
                KIND_ARRAY => {
                    count = count.checked_mul(word(found.rest, 8)?).ok_or("an array beyond 4 GiB")?;
                    number = word(found.rest, 0)?;
                    continue;
                }
                kind => return Err(format!("expected a type with a size, found kind {kind}")),
            };
            return count
                .checked_mul(size)
                .ok_or_else(|| "an array beyond 4 GiB".to_owned());
        }
        Err(format!("expected at most {MAX_DEPTH} dimensions"))
    }

    /// Number that a member of a map's definition encodes: the length of the array to which it points.
    fn number(&self, pointer: u32) -> Result<u32, String> {
        let array = self.pointee(pointer).and_then(|pointee| self.resolve(pointee))?;
        match array.kind {
            KIND_ARRAY => word(array.rest, 8),
            _ => Err("expected a number, as __uint defines it".to_owned()),
        }
    }

    fn pointee(&self, pointer: u32) -> Result<u32, String> {
        let found = self.resolve(pointer)?;
        match found.kind {
            KIND_PTR => Ok(found.value),
            _ => Err("expected a pointer, as __uint and __type define it".to_owned()),
        }
    }

    /// Maps that the section `.maps` defines, at most `most`.
    ///
    /// # Errors
    /// The map's name and the expected content.
    pub(super) fn maps(&self, most: usize) -> Result<Vec<MapSpec>, String> {
        let numbers = 1..=self.types.len() as u32;
        let mut section = None;
        for number in numbers {
            let found = self.get(number)?;
            if found.kind == KIND_DATASEC && self.name(found.name) == ".maps" {
                section = Some(found);
            }
        }
        let section = section.ok_or("expected the definitions of the section .maps, found none")?;
        let (variables, _) = section.rest.as_chunks::<12>();
        if variables.len() > most {
            return Err(format!("expected at most {most} maps, found {}", variables.len()));
        }
        let map = |variable: &[u8; 12]| {
            let variable = self.get(word(variable, 0)?)?;
            let name = self.name(variable.name);
            self.map(name, variable.value)
                .map_err(|why| format!("map {name}: {why}"))
        };
        variables.iter().map(map).collect()
    }

    /// Map that a variable of this type defines.
    fn map(&self, name: &str, number: u32) -> Result<MapSpec, String> {
        let definition = self.resolve(number)?;
        if definition.kind != KIND_STRUCT {
            return Err("expected a struct".to_owned());
        }
        let [mut kind, mut key, mut value, mut entries, mut flags] = [0_u32; 5];
        let (members, _) = definition.rest.as_chunks::<12>();
        for member in members {
            let (field, ty) = (self.name(word(member, 0)?), word(member, 4)?);
            let read = || match field {
                "key" | "value" => self.pointee(ty).and_then(|pointee| self.size(pointee)),
                _ => self.number(ty),
            };
            let field_of = match field {
                "type" => &mut kind,
                "key" | "key_size" => &mut key,
                "value" | "value_size" => &mut value,
                "max_entries" => &mut entries,
                "map_flags" => &mut flags,
                // Pinning concerns the file system of the kernel's maps.
                "pinning" => continue,
                other => return Err(format!("{other} is not supported")),
            };
            *field_of = read().map_err(|why| format!("{field}: {why}"))?;
        }
        MapSpec::new(name, [kind, key, value, entries, flags])
    }
}

/// Type of an object.
struct Type<'a> {
    name: u32,
    kind: u8,
    /// Size, or the type to which it refers.
    value: u32,
    rest: &'a [u8],
}
