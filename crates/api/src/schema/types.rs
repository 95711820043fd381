//! Tables that describe the fields of specs.

use std::ops::RangeInclusive;
use tailwater_net::Nanos;

/// Map with known fields.
#[derive(Debug)]
pub struct Map {
    /// Its fields, in the order in which errors and docs list them.
    pub fields: &'static [Field],
    /// Conditions on several fields.
    pub rules: &'static [Rule],
    /// `true` if an empty node is a map without fields.
    pub nullable: bool,
}

impl Map {
    /// Map without fields and conditions, as a base for others.
    pub const PLAIN: Map = Map {
        fields: &[],
        rules: &[],
        nullable: false,
    };

    /// Returns the field of this name.
    pub fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.name == name)
    }

    /// Returns `true` if a condition concerns the field, so that it cannot be added to every map.
    pub(super) fn is_conditional(&self, field: &Field) -> bool {
        field.only.is_some() || self.rules.iter().any(|rule| rule.fields().contains(&field.name))
    }
}

/// Field of a map.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Name.
    pub name: &'static str,
    /// Type of its value.
    pub ty: Type,
    /// Description, one sentence or more, that begins with a capital letter.
    pub doc: &'static str,
    /// `true` if the field must be present.
    pub required: bool,
    /// Default as YAML, if it is a constant.
    pub default: Option<&'static str>,
    /// Description of the default, if it is no constant.
    pub otherwise: Option<&'static str>,
    /// Example as YAML.
    pub example: Option<&'static str>,
    /// Condition under which the field is allowed.
    pub only: Option<Only>,
}

/// Condition under which a field is allowed.
#[derive(Clone, Copy, Debug)]
pub enum Only {
    /// Another field is present.
    With(&'static str),
    /// Another field has this value, which is not its default.
    If(&'static str, &'static str),
    /// Another field has this value, which is its default, or is absent.
    Unless(&'static str, &'static str),
}

impl Field {
    /// Optional field.
    pub const fn new(name: &'static str, ty: Type, doc: &'static str) -> Field {
        Field {
            name,
            ty,
            doc,
            required: false,
            default: None,
            otherwise: None,
            example: None,
            only: None,
        }
    }

    /// Makes the field required.
    #[must_use]
    pub const fn required(mut self) -> Field {
        self.required = true;
        self
    }

    /// Sets the default, as YAML.
    #[must_use]
    pub const fn or(mut self, default: &'static str) -> Field {
        self.default = Some(default);
        self
    }

    /// Sets the description of a default that is no constant.
    #[must_use]
    pub const fn otherwise(mut self, default: &'static str) -> Field {
        self.otherwise = Some(default);
        self
    }

    /// Sets an example, as YAML.
    #[must_use]
    pub const fn example(mut self, example: &'static str) -> Field {
        self.example = Some(example);
        self
    }

    /// Allows the field only beside another one.
    #[must_use]
    pub const fn only_with(mut self, field: &'static str) -> Field {
        self.only = Some(Only::With(field));
        self
    }

    /// Allows the field only if another one has a value, which is not its default.
    #[must_use]
    pub const fn only_if(mut self, field: &'static str, value: &'static str) -> Field {
        self.only = Some(Only::If(field, value));
        self
    }

    /// Allows the field only if another one has a value, which is its default, or is absent.
    #[must_use]
    pub const fn only_unless_changed(mut self, field: &'static str, value: &'static str) -> Field {
        self.only = Some(Only::Unless(field, value));
        self
    }
}

impl Only {
    /// The other field.
    pub fn field(&self) -> &'static str {
        match self {
            Only::With(field) | Only::If(field, _) | Only::Unless(field, _) => field,
        }
    }
}

/// Condition on several fields of a map.
#[derive(Clone, Copy, Debug)]
pub enum Rule {
    /// Exactly one of the fields is present.
    ExactlyOne(&'static [&'static str]),
    /// At most one of the fields is present.
    AtMostOne(&'static [&'static str]),
    /// At least one of the fields is present.
    AtLeastOne(&'static [&'static str]),
}

impl Rule {
    /// Fields that the condition concerns.
    pub fn fields(&self) -> &'static [&'static str] {
        match self {
            Rule::ExactlyOne(fields) | Rule::AtMostOne(fields) | Rule::AtLeastOne(fields) => fields,
        }
    }
}

/// Type of a value.
#[derive(Clone, Copy, Debug)]
pub enum Type {
    /// Text of a form.
    Text(&'static Text),
    /// Any text of at most this length in bytes.
    Any(usize),
    /// One of these words.
    Words(&'static [&'static str]),
    /// `true` or `false`.
    Bool,
    /// `true`.
    True,
    /// Whole number in a range.
    Whole(u64, u64),
    /// Decimal number in a range. `above` is `true` if it is above the lower end, and not equal to it.
    Number {
        /// Lower end.
        least: f64,
        /// Upper end.
        most: f64,
        /// `true` if the lower end is excluded.
        above: bool,
        /// `true` if the upper end is excluded.
        below: bool,
    },
    /// Duration with a unit.
    Duration(Nanos, Nanos),
    /// Rate in packets or bits per second.
    Rate,
    /// Rate in packets per second.
    PacketRate,
    /// Rate in bits per second.
    BitRate,
    /// Size with a unit, in bytes.
    Size(u64, u64),
    /// List of at least the first and at most the second number of items.
    List(&'static Type, usize, usize),
    /// Map with known fields.
    Map(&'static Map),
    /// Map whose keys are names.
    Entries(&'static Entries),
    /// One of several types.
    OneOf(&'static [Type]),
    /// Functions of a chain or of a branch.
    Functions,
    /// Map that is not interpreted.
    Object,
}

impl Type {
    /// Duration in a range.
    pub const fn duration(range: &RangeInclusive<Nanos>) -> Type {
        Type::Duration(*range.start(), *range.end())
    }

    /// Whole number in a range.
    pub const fn whole(range: &RangeInclusive<u64>) -> Type {
        Type::Whole(*range.start(), *range.end())
    }

    /// Size in a range of bytes.
    pub const fn size(range: &RangeInclusive<u64>) -> Type {
        Type::Size(*range.start(), *range.end())
    }

    /// Decimal number in a range, both ends included.
    pub const fn number(least: f64, most: f64) -> Type {
        Type::Number {
            least,
            most,
            above: false,
            below: false,
        }
    }

    /// List of 1 to `most` items.
    pub const fn list(item: &'static Type, most: usize) -> Type {
        Type::List(item, 1, most)
    }
}

/// Form of a text.
#[derive(Debug)]
pub struct Text {
    /// Name of the form, with its article.
    pub what: &'static str,
    /// Regular expression, anchored, in the common part of ECMA-262 and RE2.
    pub pattern: &'static str,
    /// Maximum length in characters.
    pub most: usize,
    /// Text of this form.
    pub example: &'static str,
    /// Range of whole numbers that are allowed, too.
    pub whole: Option<(u64, u64)>,
}

/// Map whose keys are names.
#[derive(Debug)]
pub struct Entries {
    /// Name of a key in docs, such as `NAME`.
    pub key: &'static str,
    /// Form of the keys.
    pub keys: &'static Text,
    /// Type of the values.
    pub value: Type,
    /// Minimum number of entries.
    pub least: usize,
    /// Maximum number of entries.
    pub most: usize,
}

/// Kind of document.
#[derive(Debug)]
pub struct Kind {
    /// Name, as in `kind`.
    pub name: &'static str,
    /// Description.
    pub doc: &'static str,
    /// Fields of `spec`.
    pub spec: &'static Map,
}

/// Kind of function that an item of a chain's list can name.
#[derive(Clone, Copy, Debug)]
pub struct FunctionSchema {
    /// Key in YAML.
    pub name: &'static str,
    /// Description.
    pub doc: &'static str,
    /// Its configuration.
    pub config: &'static Map,
}
