//! Which container a process is in, by the names of its cgroups (`/proc/PID/cgroup`).
//!
//! ```text
//! 0::/system.slice/docker-<id>.scope                                        docker, systemd
//! 0::/docker/<id>                                                           docker, cgroupfs
//! 0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice/cri-containerd-<id>.scope
//! 0::/kubepods/burstable/pod<uid>/<id>                                      containerd, cgroupfs
//! 0::/system.slice/containerd.service/kubepods-burstable-pod<uid>.slice:cri-containerd:<id>
//! 0::/kubepods.slice/…/crio-<id>.scope/container                            CRI-O
//! 0::/user.slice/user-1000.slice/…/user.slice/libpod-<id>.scope/container    podman
//! 0::/../../kubepods-besteffort-pod<uid>.slice/cri-containerd-<id>.scope    seen from another container
//! 4:memory:/docker/<id>                                                     cgroups of version 1
//! ```
//!
//! The innermost container counts. Its pod is the nearest one around it.

use engine::container::Runtime;

/// The longest name of an LXC or nspawn container that is believed.
const LONGEST_NAME: usize = 128;

/// What cgroups tell.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    pub(crate) id: Box<str>,
    pub(crate) runtime: Runtime,
    pub(crate) pod: Option<Box<str>>,
}

impl Found {
    /// How much it tells: the hierarchies of version 1 need not agree.
    fn worth(&self) -> (bool, bool) {
        (self.pod.is_some(), self.runtime != Runtime::Unknown)
    }
}

/// The container in the text of a `cgroup` file.
pub(crate) fn parse(text: &str) -> Option<Found> {
    let mut best: Option<Found> = None;
    for line in text.lines() {
        // The path itself may have colons.
        let Some(path) = line.splitn(3, ':').nth(2) else { continue };
        let Some(found) = of_path(path) else { continue };
        if best.as_ref().is_none_or(|best| found.worth() > best.worth()) {
            best = Some(found);
        }
    }
    best
}

fn of_path(path: &str) -> Option<Found> {
    let (mut pod, mut found, mut parent) = (None, None, "");
    for name in path.split('/').filter(|name| !name.is_empty()) {
        pod = pod_uid(name).or(pod);
        if let Some((runtime, id)) = container(name, parent, pod.is_some()) {
            found = Some(Found { id, runtime, pod: pod.clone() });
        }
        parent = name;
    }
    found
}

/// The uid in the name of a pod's cgroup: `pod<uid>`, or `kubepods-burstable-pod<uid>.slice` with `_`
/// for `-`. A pod that the node made from a file has a hash for a uid.
fn pod_uid(name: &str) -> Option<Box<str>> {
    let name = name.split(':').next()?;
    let uid = match name.strip_suffix(".slice") {
        Some(slice) => {
            let (above, uid) = slice.rsplit_once("-pod")?;
            above.split('-').any(|part| part == "kubepods").then_some(uid)?
        }
        None => name.strip_prefix("pod")?,
    };
    let uid = uid.replace('_', "-");
    let fits = (32..=64).contains(&uid.len());
    let is_uid = fits && uid.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    is_uid.then(|| uid.into())
}

/// The container that a cgroup of this name is of.
fn container(name: &str, parent: &str, in_pod: bool) -> Option<(Runtime, Box<str>)> {
    let scope = name.strip_suffix(".scope").unwrap_or(name);
    if let Some((prefix, id)) = scope.rsplit_once('-')
        && is_id(id)
    {
        return Some((by_prefix(prefix)?, id.into()));
    }
    // containerd without systemd: `<slice>:cri-containerd:<id>`.
    if let Some((above, id)) = name.rsplit_once(':')
        && is_id(id)
    {
        let prefix = above.rsplit(':').next().unwrap_or(above);
        return Some((by_prefix(prefix).unwrap_or(Runtime::Unknown), id.into()));
    }
    if is_long_id(name) {
        return Some((by_parent(parent, in_pod), name.into()));
    }
    named(name, parent).map(|name| (Runtime::Unknown, name))
}

/// Who names cgroups so. `conmon` watches a container from outside of it.
fn by_prefix(prefix: &str) -> Option<Runtime> {
    match prefix {
        "docker" => Some(Runtime::Docker),
        "cri-containerd" | "nerdctl" => Some(Runtime::Containerd),
        "crio" => Some(Runtime::CriO),
        "libpod" => Some(Runtime::Podman),
        _ => None,
    }
}

/// Who puts bare ids into such a cgroup.
fn by_parent(parent: &str, in_pod: bool) -> Runtime {
    match parent {
        "docker" | "moby" => Runtime::Docker,
        "libpod_parent" => Runtime::Podman,
        "k8s.io" | "default" => Runtime::Containerd,
        _ if in_pod => Runtime::Containerd,
        _ => Runtime::Unknown,
    }
}

/// LXC and systemd-nspawn have names and no ids.
fn named(name: &str, parent: &str) -> Option<Box<str>> {
    let own = name
        .strip_prefix("lxc.payload.")
        .or_else(|| matches!(parent, "lxc" | "lxc.payload").then_some(name))
        .or_else(|| name.strip_prefix("systemd-nspawn@")?.strip_suffix(".service"))
        .or_else(|| {
            let machine = name.strip_prefix("machine-")?.strip_suffix(".scope")?;
            // Virtual machines are in such a cgroup, too.
            (!machine.starts_with("qemu") && !machine.starts_with("lxc\\x2d")).then_some(machine)
        })?;
    let own = own.replace("\\x2d", "-");
    (!own.is_empty() && own.len() <= LONGEST_NAME).then(|| own.into())
}

fn is_id(text: &str) -> bool {
    (12..=128).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Without a word that says what it is: nothing shorter than what all runtimes have.
fn is_long_id(text: &str) -> bool {
    text.len() == 64 && is_id(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "3f2a5b6c7d8e9f003f2a5b6c7d8e9f003f2a5b6c7d8e9f003f2a5b6c7d8e9f00";
    const B: &str = "b16b00b5b16b00b5b16b00b5b16b00b5b16b00b5b16b00b5b16b00b5b16b00b5";
    const POD: &str = "0a1b2c3d-1111-2222-3333-444455556666";
    const STATIC_POD: &str = "8d5c1f2e3a4b5c6d7e8f901234567890";

    /// Words in braces stand for ids and names.
    fn read(lines: &str) -> Option<(Box<str>, Runtime, Option<Box<str>>)> {
        let text = lines
            .replace("{A}", A)
            .replace("{B}", B)
            .replace("{POD}", POD)
            .replace("{P_OD}", &POD.replace('-', "_"))
            .replace("{STATIC}", STATIC_POD)
            .replace("{UID}", "1000")
            .replace("{WEB}", "web");
        parse(&text).map(|found| (found.id, found.runtime, found.pod))
    }

    fn is(lines: &str, id: &str, runtime: Runtime, pod: Option<&str>) {
        let want = Some((id.into(), runtime, pod.map(Into::into)));
        assert_eq!(read(lines), want, "{lines}");
    }

    #[test]
    fn docker_is_recognised_in_both_of_its_ways_and_both_versions_of_cgroups() {
        for line in [
            "0::/system.slice/docker-{A}.scope",
            "0::/docker/{A}",
            "0::/docker/{A}/init.scope",
            "12:memory:/docker/{A}\n1:name=systemd:/docker/{A}\n0::/system.slice/containerd.service",
            "0::/user.slice/user-1000.slice/user@{UID}.service/user.slice/docker-{A}.scope",
            "0::/moby/{A}",
            "9:cpu,cpuacct:/system.slice/docker-{A}.scope\n0::/",
        ] {
            is(line, A, Runtime::Docker, None);
        }
        is("0::/docker/{B}/docker/{A}", A, Runtime::Docker, None);
    }

    #[test]
    fn containerd_is_recognised_with_and_without_systemd() {
        for line in [
            "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{P_OD}.slice/cri-containerd-{A}.scope",
            "0::/kubepods.slice/kubepods-pod{P_OD}.slice/cri-containerd-{A}.scope",
            "11:devices:/kubepods/besteffort/pod{POD}/{A}\n0::/",
            "0::/kubepods/pod{POD}/{A}",
            "0::/system.slice/containerd.service/kubepods-burstable-pod{P_OD}.slice:cri-containerd:{A}",
            "0::/docker/{B}/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod{P_OD}.slice/cri-containerd-{A}.scope",
        ] {
            is(line, A, Runtime::Containerd, Some(POD));
        }
        is("0::/system.slice/nerdctl-{A}.scope", A, Runtime::Containerd, None);
        is("0::/k8s.io/{A}", A, Runtime::Containerd, None);
    }

    #[test]
    fn cri_o_and_podman_are_recognised_and_their_monitors_are_in_no_container() {
        for line in [
            "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{P_OD}.slice/crio-{A}.scope",
            "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{P_OD}.slice/crio-{A}.scope/container",
            "0::/kubepods/besteffort/pod{POD}/crio-{A}",
        ] {
            is(line, A, Runtime::CriO, Some(POD));
        }
        for line in [
            "0::/machine.slice/libpod-{A}.scope",
            "0::/machine.slice/libpod-{A}.scope/container",
            "0::/user.slice/user-1000.slice/user@{UID}.service/user.slice/libpod-{A}.scope/container",
            "0::/machine.slice/machine-libpod_pod_{B}.slice/libpod-{A}.scope",
            "4:pids:/libpod_parent/libpod-{A}",
        ] {
            is(line, A, Runtime::Podman, None);
        }
        for line in [
            "0::/machine.slice/libpod-conmon-{A}.scope",
            "0::/kubepods.slice/kubepods-besteffort-pod{P_OD}.slice/crio-conmon-{A}.scope",
        ] {
            assert_eq!(read(line), None, "{line}");
        }
    }

    #[test]
    fn a_pod_from_a_file_of_the_node_has_a_hash_for_a_uid() {
        let line = "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{STATIC}.slice/cri-containerd-{A}.scope";
        is(line, A, Runtime::Containerd, Some(STATIC_POD));
        is("0::/kubepods/burstable/pod{STATIC}/{A}", A, Runtime::Containerd, Some(STATIC_POD));
    }

    #[test]
    fn containers_are_seen_from_inside_of_another_one() {
        is(
            "0::/../../kubepods-besteffort-pod{P_OD}.slice/cri-containerd-{A}.scope",
            A,
            Runtime::Containerd,
            Some(POD),
        );
        is("0::/../../pod{POD}/{A}", A, Runtime::Containerd, Some(POD));
        is("0::/../docker-{A}.scope", A, Runtime::Docker, None);
        is("0::/../{A}", A, Runtime::Unknown, None);
        assert_eq!(read("0::/"), None);
        assert_eq!(read("0::/.."), None);
    }

    #[test]
    fn lxc_and_nspawn_have_names() {
        for (line, name) in [
            ("0::/lxc.payload.web/user.slice", "web"),
            ("7:pids:/lxc/web", "web"),
            ("0::/machine.slice/systemd-nspawn@{WEB}.service/payload", "web"),
            ("0::/machine.slice/machine-my\\x2dweb.scope", "my-web"),
        ] {
            is(line, name, Runtime::Unknown, None);
        }
        assert_eq!(read("0::/machine.slice/machine-qemu\\x2d1\\x2dvm.scope"), None);
        assert_eq!(read(&format!("0::/lxc/{}", "x".repeat(129))), None);
    }

    #[test]
    fn the_hierarchy_that_tells_most_counts() {
        is(
            "5:memory:/{A}\n4:pids:/kubepods/pod{POD}/{A}\n3:cpu:/docker/{A}",
            A,
            Runtime::Containerd,
            Some(POD),
        );
        is("5:memory:/{B}\n4:pids:/docker/{A}", A, Runtime::Docker, None);
    }

    #[test]
    fn what_is_no_container_is_none() {
        for text in [
            "",
            "\n\n::\n0:\n0::\n",
            "0::/user.slice/user-1000.slice/session-3.scope",
            "0::/system.slice/docker.service",
            "0::/system.slice/docker-.scope",
            "0::/system.slice/docker-notanid.scope",
            "4:memory:/batch/1ad25adb361f455ff28ff04cb95834b8",
            "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{P_OD}.slice",
            "0::/app.slice/app-podracer.slice/x",
            "docker-{A}.scope",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    proptest::proptest! {
        #![proptest_config(crate::random::config(crate::random::CASES))]

        #[test]
        fn any_text_has_an_answer(text in "(.|\n|/|:|-|\\.slice|\\.scope|pod|docker|[0-9a-f]{64}){0,40}") {
            if let Some(found) = parse(&text) {
                proptest::prop_assert!(found.id.len() <= LONGEST_NAME);
            }
        }
    }
}
