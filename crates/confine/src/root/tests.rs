use super::*;
use std::process;

/// Temporary directory of a test, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let name = format!("tailwater-root-{}-{name}", process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Folder(path.canonicalize().unwrap())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn skeleton(folder: &Folder, files: &[PathBuf]) -> Result<Skeleton, Error> {
    let program = std::env::current_exe().unwrap();
    let root = Root { files: files.to_vec() };
    Skeleton::make(&folder.0.join("root"), &program, &root, None)
}

#[test]
fn files_are_where_they_were_named_whatever_leads_there() {
    let folder = Folder::new("named");
    let (real, named) = (folder.0.join("real"), folder.0.join("a/b/../../link"));
    fs::write(&real, "rules").unwrap();
    symlink("real", folder.0.join("link")).unwrap();
    fs::create_dir_all(folder.0.join("a/b")).unwrap();
    // Naming a file twice makes no difference.
    let skeleton = skeleton(&folder, &[named.clone(), named.clone(), real.clone()]).unwrap();
    let root = folder.0.join("root");
    let at = |path: &str| (real.clone(), folder.0.join(path));
    let seen: Vec<_> = skeleton.seen.iter().rev().take(2).cloned().collect();
    assert_eq!(seen, [at("real"), at("link")]);
    // The directories in the name exist, and every user can pass through them.
    let through = inside(&root, &folder.0.join("a/b"));
    assert_eq!(through.metadata().unwrap().mode() & 0o777, 0o755);
    assert!(inside(&root, &named).is_file());
}

#[test]
fn nothing_is_made_outside_the_root() {
    let folder = Folder::new("outside");
    let up = "/..".repeat(20);
    let file = folder.0.join("file");
    fs::write(&file, "rules").unwrap();
    let named = PathBuf::from(format!("{up}{}", file.display()));
    let skeleton = skeleton(&folder, &[named]).unwrap();
    assert_eq!(skeleton.seen.last().unwrap().1, file);
    let root = folder.0.join("root");
    assert!(inside(&root, &file).is_file());
    // A link in the root is not followed.
    symlink("/", root.join("out")).unwrap();
    let through = Path::new("/out/tailwater-root/file");
    assert!(skeleton.place(through).is_err());
    assert!(!Path::new("/tailwater-root").exists());
}

#[test]
fn what_is_not_there_is_told() {
    let folder = Folder::new("missing");
    let missing = folder.0.join("missing");
    let error = skeleton(&folder, std::slice::from_ref(&missing))
        .unwrap_err()
        .to_string();
    assert!(error.starts_with(&missing.display().to_string()), "{error}");
}

/// Returns the headers of an ELF program with these segments: types and flags.
fn elf(segments: &[(u32, u32)]) -> Vec<u8> {
    let mut bytes = vec![0; 64];
    bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
    bytes[18] = 62;
    bytes[32] = 64;
    bytes[54] = 56;
    bytes[56] = segments.len() as u8;
    for (kind, flags) in segments {
        bytes.extend(kind.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend([0; 48]);
    }
    bytes
}

/// The kernel maps segments and the stack as a program's file says, and no filter sees that.
#[test]
fn a_program_with_memory_that_is_writable_and_executable_is_recognised() {
    let folder = Folder::new("elf");
    let path = folder.0.join("program");
    let (load, interpreter, stack) = (1, 3, 0x6474_e551);
    let (read, write, execute) = (4, 2, 1);
    for (segments, wants_libraries, has_writable_code) in [
        (
            &[(load, read | execute), (load, read | write), (stack, read | write)][..],
            false,
            false,
        ),
        (&[(interpreter, read), (load, read | execute)], true, false),
        (&[(load, read | write | execute)], false, true),
        (&[(interpreter, read), (stack, read | write | execute)], true, true),
    ] {
        fs::write(&path, elf(segments)).unwrap();
        let expected = ProgramFile {
            wants_libraries,
            has_writable_code,
        };
        assert_eq!(examine(&path).unwrap(), expected, "{segments:?}");
    }
    let ours = examine(&std::env::current_exe().unwrap()).unwrap();
    assert!(!ours.has_writable_code);
}
