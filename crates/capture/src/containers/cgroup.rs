//! Detects the container of a process by the names of its cgroups (`/proc/PID/cgroup`).
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
//! The innermost container is used. Its pod is the nearest one around it.

use engine::model::container::ContainerRuntime;

/// Maximum length of the name of an LXC or nspawn container.
const MAX_NAME_LEN: usize = 128;

/// A container found in cgroup names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct CgroupMatch {
    pub(crate) id: Box<str>,
    pub(crate) runtime: ContainerRuntime,
    pub(crate) pod: Option<Box<str>>,
}

impl CgroupMatch {
    /// Level of detail: the hierarchies of cgroups version 1 need not agree.
    fn detail(&self) -> (bool, bool) {
        (self.pod.is_some(), self.runtime != ContainerRuntime::Unknown)
    }
}

/// Finds the container in the text of a `cgroup` file.
pub(crate) fn parse(text: &str) -> Option<CgroupMatch> {
    let mut best: Option<CgroupMatch> = None;
    for line in text.lines() {
        // The path may contain colons.
        let Some(path) = line.splitn(3, ':').nth(2) else { continue };
        let Some(found) = in_path(path) else { continue };
        if best.as_ref().is_none_or(|best| found.detail() > best.detail()) {
            best = Some(found);
        }
    }
    best
}

fn in_path(path: &str) -> Option<CgroupMatch> {
    let (mut pod, mut found, mut parent) = (None, None, "");
    for name in path.split('/').filter(|name| !name.is_empty()) {
        pod = pod_uid(name).or(pod);
        if let Some((runtime, id)) = container(name, parent, pod.is_some()) {
            found = Some(CgroupMatch { id, runtime, pod: pod.clone() });
        }
        parent = name;
    }
    found
}

/// Returns the uid in the name of a pod's cgroup: `pod<uid>`, or
/// `kubepods-burstable-pod<uid>.slice` with `_` for `-`. The uid of a static pod is a hash.
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

/// Returns the container of a cgroup with this name.
fn container(name: &str, parent: &str, in_pod: bool) -> Option<(ContainerRuntime, Box<str>)> {
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
        return Some((by_prefix(prefix).unwrap_or(ContainerRuntime::Unknown), id.into()));
    }
    if is_long_id(name) {
        return Some((by_parent(parent, in_pod), name.into()));
    }
    by_name(name, parent).map(|name| (ContainerRuntime::Unknown, name))
}

/// Returns the runtime that uses a prefix. `conmon` monitors a container from outside.
fn by_prefix(prefix: &str) -> Option<ContainerRuntime> {
    match prefix {
        "docker" => Some(ContainerRuntime::Docker),
        "cri-containerd" | "nerdctl" => Some(ContainerRuntime::Containerd),
        "crio" => Some(ContainerRuntime::CriO),
        "libpod" => Some(ContainerRuntime::Podman),
        _ => None,
    }
}

/// Returns the runtime that puts plain ids into such a cgroup.
fn by_parent(parent: &str, in_pod: bool) -> ContainerRuntime {
    match parent {
        "docker" | "moby" => ContainerRuntime::Docker,
        "libpod_parent" => ContainerRuntime::Podman,
        "k8s.io" | "default" => ContainerRuntime::Containerd,
        _ if in_pod => ContainerRuntime::Containerd,
        _ => ContainerRuntime::Unknown,
    }
}

/// Returns the name of an LXC or systemd-nspawn container, which have names instead of ids.
fn by_name(name: &str, parent: &str) -> Option<Box<str>> {
    let own = name
        .strip_prefix("lxc.payload.")
        .or_else(|| matches!(parent, "lxc" | "lxc.payload").then_some(name))
        .or_else(|| name.strip_prefix("systemd-nspawn@")?.strip_suffix(".service"))
        .or_else(|| {
            let machine = name.strip_prefix("machine-")?.strip_suffix(".scope")?;
            // Virtual machines also have such a cgroup.
            (!machine.starts_with("qemu") && !machine.starts_with("lxc\\x2d")).then_some(machine)
        })?;
    let own = own.replace("\\x2d", "-");
    (!own.is_empty() && own.len() <= MAX_NAME_LEN).then(|| own.into())
}

fn is_id(text: &str) -> bool {
    (12..=128).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Without a prefix only ids of the full length count.
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

    /// Parses lines after replacing the placeholders in braces.
    fn read(lines: &str) -> Option<(Box<str>, ContainerRuntime, Option<Box<str>>)> {
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

    fn check(lines: &str, id: &str, runtime: ContainerRuntime, pod: Option<&str>) {
        let expected = Some((id.into(), runtime, pod.map(Into::into)));
        assert_eq!(read(lines), expected, "{lines}");
    }

    #[test]
    fn docker_is_detected_for_both_drivers_and_cgroup_versions() {
        for line in [
            "0::/system.slice/docker-{A}.scope",
            "0::/docker/{A}",
            "0::/docker/{A}/init.scope",
            "12:memory:/docker/{A}\n1:name=systemd:/docker/{A}\n0::/system.slice/containerd.service",
            "0::/user.slice/user-1000.slice/user@{UID}.service/user.slice/docker-{A}.scope",
            "0::/moby/{A}",
            "9:cpu,cpuacct:/system.slice/docker-{A}.scope\n0::/",
        ] {
            check(line, A, ContainerRuntime::Docker, None);
        }
        check("0::/docker/{B}/docker/{A}", A, ContainerRuntime::Docker, None);
    }

    #[test]
    fn containerd_is_detected_with_and_without_systemd() {
        for line in [
            "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{P_OD}.slice/cri-containerd-{A}.scope",
            "0::/kubepods.slice/kubepods-pod{P_OD}.slice/cri-containerd-{A}.scope",
            "11:devices:/kubepods/besteffort/pod{POD}/{A}\n0::/",
            "0::/kubepods/pod{POD}/{A}",
            "0::/system.slice/containerd.service/kubepods-burstable-pod{P_OD}.slice:cri-containerd:{A}",
            "0::/docker/{B}/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod{P_OD}.slice/cri-containerd-{A}.scope",
        ] {
            check(line, A, ContainerRuntime::Containerd, Some(POD));
        }
        check("0::/system.slice/nerdctl-{A}.scope", A, ContainerRuntime::Containerd, None);
        check("0::/k8s.io/{A}", A, ContainerRuntime::Containerd, None);
    }

    #[test]
    fn cri_o_and_podman_are_detected_without_conmon() {
        for line in [
            "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{P_OD}.slice/crio-{A}.scope",
            "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{P_OD}.slice/crio-{A}.scope/container",
            "0::/kubepods/besteffort/pod{POD}/crio-{A}",
        ] {
            check(line, A, ContainerRuntime::CriO, Some(POD));
        }
        for line in [
            "0::/machine.slice/libpod-{A}.scope",
            "0::/machine.slice/libpod-{A}.scope/container",
            "0::/user.slice/user-1000.slice/user@{UID}.service/user.slice/libpod-{A}.scope/container",
            "0::/machine.slice/machine-libpod_pod_{B}.slice/libpod-{A}.scope",
            "4:pids:/libpod_parent/libpod-{A}",
        ] {
            check(line, A, ContainerRuntime::Podman, None);
        }
        for line in [
            "0::/machine.slice/libpod-conmon-{A}.scope",
            "0::/kubepods.slice/kubepods-besteffort-pod{P_OD}.slice/crio-conmon-{A}.scope",
        ] {
            assert_eq!(read(line), None, "{line}");
        }
    }

    #[test]
    fn static_pod_uid_is_a_hash() {
        let line = "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{STATIC}.slice/cri-containerd-{A}.scope";
        check(line, A, ContainerRuntime::Containerd, Some(STATIC_POD));
        check(
            "0::/kubepods/burstable/pod{STATIC}/{A}",
            A,
            ContainerRuntime::Containerd,
            Some(STATIC_POD),
        );
    }

    #[test]
    fn containers_are_detected_from_inside_another_one() {
        check(
            "0::/../../kubepods-besteffort-pod{P_OD}.slice/cri-containerd-{A}.scope",
            A,
            ContainerRuntime::Containerd,
            Some(POD),
        );
        check("0::/../../pod{POD}/{A}", A, ContainerRuntime::Containerd, Some(POD));
        check("0::/../docker-{A}.scope", A, ContainerRuntime::Docker, None);
        check("0::/../{A}", A, ContainerRuntime::Unknown, None);
        assert_eq!(read("0::/"), None);
        assert_eq!(read("0::/.."), None);
    }

    #[test]
    fn lxc_and_nspawn_are_identified_by_name() {
        for (line, name) in [
            ("0::/lxc.payload.web/user.slice", "web"),
            ("7:pids:/lxc/web", "web"),
            ("0::/machine.slice/systemd-nspawn@{WEB}.service/payload", "web"),
            ("0::/machine.slice/machine-my\\x2dweb.scope", "my-web"),
        ] {
            check(line, name, ContainerRuntime::Unknown, None);
        }
        assert_eq!(read("0::/machine.slice/machine-qemu\\x2d1\\x2dvm.scope"), None);
        assert_eq!(read(&format!("0::/lxc/{}", "x".repeat(129))), None);
    }

    #[test]
    fn most_detailed_hierarchy_wins() {
        check(
            "5:memory:/{A}\n4:pids:/kubepods/pod{POD}/{A}\n3:cpu:/docker/{A}",
            A,
            ContainerRuntime::Containerd,
            Some(POD),
        );
        check("5:memory:/{B}\n4:pids:/docker/{A}", A, ContainerRuntime::Docker, None);
    }

    #[test]
    fn other_cgroups_are_not_containers() {
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
        fn any_text_is_parsed(text in "(.|\n|/|:|-|\\.slice|\\.scope|pod|docker|[0-9a-f]{64}){0,40}") {
            if let Some(found) = parse(&text) {
                proptest::prop_assert!(found.id.len() <= MAX_NAME_LEN);
            }
        }
    }
}
