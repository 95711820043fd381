//! Configuration of `library` and `program`, the third-party functions.

use crate::kind::Context;
use crate::library::{Code, ExecutionMode, LibraryError, LibraryFunction};
use std::path::{Path, PathBuf};
use tailwater_api::error::SpecError;
use tailwater_api::located::{Fields, Located};
use tailwater_api::schema::{FILE, Field, Map, Rule, Type};

const CONFIG: Field = Field::new(
    "config",
    Type::Object,
    "The function's own configuration: any map, which it reads as JSON.",
)
.otherwise("none")
.example("{packetsPerSecond: 2000}");
const READ_ONLY: Field = Field::new(
    "readOnly",
    Type::Bool,
    "The function changes no byte of a frame. With isolation the kernel enforces it.",
)
.or("false");
/// Fields of a library.
pub(super) static LIBRARY_FIELDS: Map = Map {
    fields: &[
        Field::new(
            "file",
            Type::Text(&FILE),
            "Shared library, relative to the spec's folder.",
        )
        .required()
        .example("./limit.so"),
        CONFIG,
        READ_ONLY,
    ],
    ..Map::PLAIN
};
/// Fields of a program.
pub(super) static PROGRAM_FIELDS: Map = Map {
    fields: &[
        Field::new(
            "file",
            Type::Text(&FILE),
            "Executable, for isolation by processes and containers; relative to the spec's folder.",
        )
        .otherwise("none")
        .example("./limit"),
        Field::new(
            "socket",
            Type::Text(&FILE),
            "Unix socket that is created for processes of the function, which join; relative to the spec's folder.",
        )
        .otherwise("none")
        .example("./limit.sock"),
        Field::new(
            "user",
            Type::Whole(0, MOST_USER),
            "Number of the user that these processes must have.",
        )
        .otherwise("that of this program")
        .only_with("socket"),
        Field::new(
            "function",
            Type::Any(253),
            "Name of the Function that runs as a pod beside each instance of the chain, on a rack. Elsewhere `file` or \
             `socket` counts.",
        )
        .otherwise("none"),
        Field::new(
            "library",
            Type::Text(&FILE),
            "The same function as a library, for runs in one process, which are refused without it.",
        )
        .otherwise("none"),
        CONFIG,
        READ_ONLY,
    ],
    rules: &[
        Rule::AtMostOne(&["file", "socket"]),
        Rule::AtLeastOne(&["file", "socket", "function"]),
    ],
    ..Map::PLAIN
};

/// Highest number of a user.
const MOST_USER: u64 = u32::MAX as u64 - 1;

/// Function from a shared library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibraryConfig(ForeignFunction);

/// Function that is a program of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramConfig(ForeignFunction);

/// Third-party function with its configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignFunction {
    /// Name that the function reports.
    pub name: String,
    /// File of the library or program.
    pub file: PathBuf,
    /// Configuration as JSON.
    pub config: String,
    /// `true` if it changes no frame: isolated, it cannot.
    pub reads_only: bool,
    /// Loaded library, where functions run in this process.
    pub loaded: Option<LibraryFunction>,
    /// Its processes join by the socket `file`, whose user has this number; `None` within: that of this program.
    pub joins: Option<Option<u32>>,
}

const LIBRARY: &str = "the name of a shared library, such as ./limit.so";
const PROGRAM: &str = "the name of an executable, such as ./limit";
const SOCKET: &str = "the name of a Unix socket, such as ./limit.sock";

impl LibraryConfig {
    pub(super) fn parse(node: &Located<'_>, context: &Context<'_>) -> Result<Self, SpecError> {
        let fields = node.fields_of(&LIBRARY_FIELDS)?;
        let file = fields.required("file", LIBRARY)?;
        let path = context.file(file.string(LIBRARY)?);
        let foreign = match context.runs() {
            ExecutionMode::InProcess => load(&path, &file, &fields),
            ExecutionMode::Isolated(apart) => read_name(&Code::Library(&path), &file, &fields, |code, config| {
                apart.read_name(code, config)
            }),
        };
        foreign.map(LibraryConfig)
    }

    /// Description of the third-party function.
    pub fn foreign(&self) -> &ForeignFunction {
        &self.0
    }
}

impl ProgramConfig {
    pub(super) fn parse(node: &Located<'_>, context: &Context<'_>) -> Result<Self, SpecError> {
        let fields = node.fields_of(&PROGRAM_FIELDS)?;
        if let Some(socket) = fields.optional("socket") {
            return Ok(ProgramConfig(joining(&socket, &fields, context)?));
        }
        if fields.optional("file").is_none() && fields.optional("function").is_some() {
            return Err(fields.error("a Function runs on a rack: expected file or socket on a single machine"));
        }
        let file = fields.required("file", PROGRAM)?;
        let name = file.string(PROGRAM)?;
        let library = fields.optional("library");
        let in_library = library.as_ref().map(|node| node.string(LIBRARY));
        let in_library = in_library.transpose()?;
        let foreign = match (context.runs(), library, in_library) {
            (ExecutionMode::InProcess, Some(library), Some(name)) => load(&context.file(name), &library, &fields),
            (ExecutionMode::InProcess, _, _) => Err(file.error(
                "a program runs only as an isolated function: expected --isolation process or container, or the same \
                 function as a shared library too (library)",
            )),
            // The library itself is not opened here.
            (ExecutionMode::Isolated(apart), _, _) => {
                let path = context.file(name);
                read_name(&Code::Program(&path), &file, &fields, |code, config| {
                    apart.read_name(code, config)
                })
            }
        };
        foreign.map(ProgramConfig)
    }

    /// Description of the third-party function.
    pub fn foreign(&self) -> &ForeignFunction {
        &self.0
    }
}

/// Function whose processes join by a socket. They read their configuration then.
fn joining(socket: &Located<'_>, fields: &Fields<'_>, context: &Context<'_>) -> Result<ForeignFunction, SpecError> {
    if fields.optional("file").is_some() {
        return Err(fields.error("expected file or socket, found both"));
    }
    let path = context.file(socket.string(SOCKET)?);
    let user = fields.optional("user").map(|user| user.whole(0..=MOST_USER));
    let function = fields.optional("function");
    let function = function.map(|name| name.string("the name of a Function")).transpose()?;
    let foreign = read_name(&Code::Socket(&path), socket, fields, |_, _| {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        Ok(function.map_or_else(|| stem.into_owned(), str::to_owned))
    })?;
    Ok(ForeignFunction {
        joins: Some(user.transpose()?.map(|user| user as u32)),
        ..foreign
    })
}

/// Loads a library and passes it the configuration.
fn load(path: &Path, file: &Located<'_>, fields: &Fields<'_>) -> Result<ForeignFunction, SpecError> {
    let mut loaded = None;
    let mut foreign = read_name(&Code::Library(path), file, fields, |_, config| {
        let function = LibraryFunction::open(path, config)?;
        let name = function.name().to_owned();
        loaded = Some(function);
        Ok(name)
    })?;
    foreign.loaded = loaded;
    Ok(foreign)
}

/// Passes a function its configuration, and obtains its name.
fn read_name(
    code: &Code<'_>,
    file: &Located<'_>,
    fields: &Fields<'_>,
    read_name: impl FnOnce(&Code<'_>, &str) -> Result<String, LibraryError>,
) -> Result<ForeignFunction, SpecError> {
    let node = fields.optional("config");
    let config = match &node {
        None => "{}".to_owned(),
        Some(node) if !node.is_map() => return Err(node.expected("a map")),
        Some(node) => node.json()?,
    };
    let reads_only = fields.optional("readOnly");
    let reads_only = reads_only.map(|node| node.word(&[("true", true), ("false", false)]));
    let reads_only = reads_only.transpose()?.unwrap_or(false);
    let path = code.file();
    match read_name(code, &config) {
        Ok(name) => Ok(ForeignFunction {
            name,
            file: path.to_owned(),
            config,
            reads_only,
            loaded: None,
            joins: None,
        }),
        Err(LibraryError::Config { field, message }) => Err(match &node {
            Some(node) => node.descendant(&field).error(message),
            None => fields.error(format!("config: {message}")),
        }),
        // The message continues after the file's name.
        Err(other) => Err(file.error(format!("{} {other}", path.display()))),
    }
}

#[cfg(test)]
mod tests {
    use crate::library::ProgramConfig;
    use crate::spec::ChainSpec;
    use std::path::Path;

    fn parse(program: &str) -> Result<ChainSpec, String> {
        let text = format!(
            "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: test}}\nspec:\n  \
             slo: {{latency: 1ms}}\n  functions: [{{program: {{{program}}}}}]\n"
        );
        ChainSpec::parse(&text, "test", Path::new("/chains")).map_err(|error| error.to_string())
    }

    #[test]
    fn processes_join_by_a_socket_in_the_place_of_a_file() {
        let joins = |program: &str| {
            let spec = parse(program).unwrap();
            let function = &spec.functions[0];
            let foreign = function.config.get::<ProgramConfig>().unwrap().foreign();
            let file = foreign.file.display().to_string();
            (function.name.clone(), file, foreign.joins)
        };
        let (limit, socket) = ("limit".to_owned(), "/chains/run/limit.sock".to_owned());
        assert_eq!(joins("socket: run/limit.sock"), (limit, socket, Some(None)));
        let with_user = joins("socket: /run/function.sock, user: 7, function: filter, config: {a: 1}");
        assert_eq!(
            with_user,
            ("filter".to_owned(), "/run/function.sock".to_owned(), Some(Some(7)))
        );
        let wrong = [
            ("socket: a.sock, file: ./a", "expected file or socket, found both"),
            ("function: limit", "expected file or socket on a single machine"),
            ("config: {a: 1}", "file: missing"),
            ("socket: a.sock, user: -1", "user: expected a whole number"),
        ];
        for (program, expected) in wrong {
            let error = parse(program).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
