//! The program and the user of a process, as people name them.

use crate::model::{Frame, Language, Pid};

/// Maximum number of characters of a program name.
const MAX_PROGRAM_CHARS: usize = 64;

/// Options of CPython that take a value, as a part of the argument or as the next one.
const PYTHON_OPTIONS_WITH_VALUE: [char; 2] = ['W', 'X'];

/// Program and user of a process (untrusted).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ProcessIdentity {
    /// Script, module or executable, without directories and arguments; `None` if unknown.
    pub program: Option<Box<str>>,
    /// Name of the user; `None` if the host has no name for the user id.
    pub user: Option<Box<str>>,
    /// What it belongs to.
    pub group: ProcessGroup,
}

/// What a process belongs to (untrusted).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ProcessGroup {
    /// Job of a scheduler: `slurm 4711.0` with its step, `ray 01000000`.
    pub job: Option<Box<str>>,
    /// Release of the program, as its deployment names it.
    pub release: Option<Box<str>>,
    /// Rank among the processes of a distributed program.
    pub rank: Option<u32>,
    /// Root of its process tree, and its program.
    pub tree: Option<(Pid, Box<str>)>,
}

impl ProcessIdentity {
    /// Returns the program, or else the name of the process.
    pub fn program_or<'a>(&'a self, name: &'a str) -> &'a str {
        self.program.as_deref().unwrap_or(name)
    }
}

/// Returns the program that a command line runs: of a Python interpreter the script or the module
/// of `-m`, otherwise the executable. `None` for an interactive interpreter and for code in an
/// argument. Other arguments are ignored, because they may be confidential.
pub fn program_of_arguments(arguments: &[&str]) -> Option<Box<str>> {
    let (first, rest) = arguments.split_first()?;
    // Programs that change their title write one argument with blanks.
    let executable = first.split(' ').next().unwrap_or_default();
    let executable = base(executable).trim_start_matches('-').trim_end_matches(':');
    let found = if is_python(executable) { python_program(rest)? } else { executable };
    (!found.is_empty()).then(|| found.chars().take(MAX_PROGRAM_CHARS).collect())
}

/// Returns the script that the outermost Python frame of a stack belongs to, innermost frame first.
pub fn program_of_stack(frames: &[Frame]) -> Option<Box<str>> {
    let python = frames.iter().rev().filter(|frame| frame.language == Language::Python);
    let scripts = python.filter_map(|frame| frame.file.as_deref());
    let is_script =
        |file: &&str| !file.starts_with('<') && !file.contains("/lib/python") && !file.is_empty();
    let found = scripts.into_iter().find(is_script)?;
    Some(base(found).chars().take(MAX_PROGRAM_CHARS).collect())
}

fn is_python(executable: &str) -> bool {
    let version = executable.strip_prefix("python").or_else(|| executable.strip_prefix("pypy"));
    version.is_some_and(|version| version.chars().all(|c| c.is_ascii_digit() || c == '.'))
}

/// Returns the script or module among the arguments of a Python interpreter.
fn python_program<'a>(arguments: &[&'a str]) -> Option<&'a str> {
    let mut rest = arguments.iter().copied();
    while let Some(argument) = rest.next() {
        let Some(options) = argument.strip_prefix('-') else { return Some(base(argument)) };
        if options.is_empty() || options.starts_with('-') {
            return None;
        }
        for (index, option) in options.char_indices() {
            let value = options.get(index + option.len_utf8()..).filter(|value| !value.is_empty());
            match option {
                'c' => return None,
                'm' => return value.or_else(|| rest.next()),
                option if PYTHON_OPTIONS_WITH_VALUE.contains(&option) => {
                    if value.is_none() {
                        rest.next();
                    }
                    break;
                }
                _ => {}
            }
        }
    }
    None
}

/// Returns the last component of a path.
pub(crate) fn base(path: &str) -> &str {
    path.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_is_the_script_module_or_executable() {
        for (command, program) in [
            ("python3 train.py --lr 1", Some("train.py")),
            ("/opt/conda/bin/python3.12 -u /srv/job/train.py", Some("train.py")),
            ("python -m vllm.entrypoints.api_server --port 1", Some("vllm.entrypoints.api_server")),
            ("python -um train", Some("train")),
            ("python -W ignore -X dev -mtrain", Some("train")),
            ("python -Wignore -O x.py", Some("x.py")),
            ("/usr/bin/python3 /srv/venv/bin/vllm serve", Some("vllm")),
            ("python -c print(1)", None),
            ("python --version", None),
            ("python", None),
            ("./build/solver --secret 1", Some("solver")),
            ("pythonic", Some("pythonic")),
            ("-bash", Some("bash")),
            ("", None),
        ] {
            let arguments: Vec<&str> = command.split(' ').collect();
            assert_eq!(program_of_arguments(&arguments).as_deref(), program, "{command}");
        }
        assert_eq!(program_of_arguments(&["nginx: worker process"]).as_deref(), Some("nginx"));
        assert_eq!(program_of_arguments(&["ray::train_step"]).as_deref(), Some("ray::train_step"));
        assert_eq!(program_of_arguments(&[]), None);
    }

    #[test]
    fn outermost_python_file_of_the_program_names_it() {
        let python = |file: &str| Frame {
            file: Some(file.into()),
            language: Language::Python,
            ..Frame::default()
        };
        let native = Frame { file: Some("main.c".into()), ..Frame::default() };
        let stack = [
            python("/usr/lib/python3/site-packages/torch/x.py"),
            python("/job/train.py"),
            python("/usr/lib/python3.12/runpy.py"),
            python("<frozen runpy>"),
            native.clone(),
        ];
        assert_eq!(program_of_stack(&stack).as_deref(), Some("train.py"));
        assert_eq!(program_of_stack(&[native]), None);
    }
}
