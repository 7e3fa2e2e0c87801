//! Maps the device ordinals of a process to GPUs. A pure function of its environment.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;

use engine::model::ids::{GpuId, Pid};
use engine::model::mig::MigInstance;

use super::{GpuInfo, instance};

/// Environment variables that decide which GPUs a process sees.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct DeviceVisibilityEnv {
    /// `CUDA_VISIBLE_DEVICES`.
    pub(crate) visible: Option<String>,
    /// `CUDA_DEVICE_ORDER`.
    pub(crate) order: Option<String>,
    /// `NVIDIA_VISIBLE_DEVICES`, which decides what a container gets.
    pub(crate) container: Option<String>,
}

impl DeviceVisibilityEnv {
    /// Reads the initial environment of a process. Later changes by the program are not visible
    /// from outside.
    pub(crate) fn read(pid: Pid) -> Self {
        let Ok(environment) = fs::read(format!("/proc/{pid}/environ")) else {
            return Self::default();
        };
        let mut variables: HashMap<&str, &str> = environment
            .split(|&byte| byte == 0)
            .filter_map(|entry| std::str::from_utf8(entry).ok()?.split_once('='))
            .collect();
        let mut remove = |name| variables.remove(name).map(str::to_owned);
        let container = remove("NVIDIA_VISIBLE_DEVICES");
        Self {
            visible: remove("CUDA_VISIBLE_DEVICES"),
            order: remove("CUDA_DEVICE_ORDER"),
            // Outside of a container the variable has no effect.
            container: container.filter(|_| in_other_mounts(pid)),
        }
    }
}

fn in_other_mounts(pid: Pid) -> bool {
    let namespace =
        |process: &str| fs::metadata(format!("/proc/{process}/ns/mnt")).ok().map(|m| m.ino());
    namespace("self") != namespace(&pid.to_string())
}

/// Returns the GPU of each ordinal; `None` if it is uncertain.
pub(crate) fn resolve_devices(gpus: &[GpuInfo], env: &DeviceVisibilityEnv) -> Vec<Option<GpuId>> {
    let available = match env.container.as_deref() {
        None | Some("" | "all") => gpus.iter().collect(),
        Some(list) => select(&gpus.iter().collect::<Vec<_>>(), list),
    };
    // By default CUDA lists the fastest GPU first; equal GPUs are in bus order.
    let by_bus = env.order.as_deref() == Some("PCI_BUS_ID");
    let in_order = by_bus || available.windows(2).all(|pair| pair[0].name == pair[1].name);
    match env.visible.as_deref() {
        None => available.iter().map(|gpu| in_order.then_some(gpu.id)).collect(),
        Some(list) => {
            select(&available, list).iter().map(|gpu| known(gpu, list, in_order)).collect()
        }
    }
}

/// Returns the MIG instance that a process uses: CUDA gives it the first one of its list. `None` if it
/// uses none, or if that is uncertain.
pub(crate) fn resolve_instance<'a>(
    gpus: &'a [GpuInfo],
    env: &DeviceVisibilityEnv,
) -> Option<&'a MigInstance> {
    let by_uuid = |entry: &str| gpus.iter().find_map(|gpu| instance(gpu, entry.trim()));
    let granted: Vec<_> =
        env.container.iter().flat_map(|list| list.split(',')).filter_map(by_uuid).collect();
    let first = match env.visible.as_deref() {
        Some(list) => list.split(',').next().unwrap_or_default().trim(),
        None => "0",
    };
    match first.parse::<usize>() {
        Err(_) => by_uuid(first),
        Ok(index) if !granted.is_empty() => granted.get(index).copied(),
        // Without a list CUDA uses the first instance that it finds.
        Ok(_) => match gpus {
            [gpu] if gpu.instances.len() == 1 => gpu.instances.first(),
            _ => None,
        },
    }
}

/// An entry by UUID is certain; one by index only if the order is.
fn known(gpu: &GpuInfo, list: &str, in_order: bool) -> Option<GpuId> {
    (in_order || list.contains("GPU-") || list.contains("MIG-")).then_some(gpu.id)
}

/// Returns the GPUs of a list, up to the first invalid entry.
fn select<'a>(gpus: &[&'a GpuInfo], list: &str) -> Vec<&'a GpuInfo> {
    list.split(',')
        .map(str::trim)
        .map_while(|entry| {
            if let Ok(index) = entry.parse::<usize>() {
                return gpus.get(index).copied();
            }
            let named = |gpu: &&&GpuInfo| {
                (entry.starts_with("GPU-") && gpu.uuid.starts_with(entry))
                    || instance(gpu, entry).is_some()
            };
            gpus.iter().find(named).copied()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(names: &[&str]) -> Vec<GpuInfo> {
        names
            .iter()
            .enumerate()
            .map(|(i, name)| GpuInfo {
                id: GpuId(i as u16),
                uuid: format!("GPU-{i}{i}{i}{i}-beef"),
                name: (*name).to_owned(),
                total_bytes: 0,
                instances: vec![MigInstance::new(&format!("MIG-{i}-a"), "GPU MIG 1g.10gb")],
            })
            .collect()
    }

    fn ordinals(
        gpus: &[GpuInfo],
        visible_devices: Option<&str>,
        order: Option<&str>,
    ) -> Vec<Option<u16>> {
        let env = DeviceVisibilityEnv {
            visible: visible_devices.map(str::to_owned),
            order: order.map(str::to_owned),
            container: None,
        };
        resolve_devices(gpus, &env).into_iter().map(|gpu| gpu.map(|gpu| gpu.0)).collect()
    }

    #[test]
    fn visible_devices_select_and_reorder() {
        let gpus = host(&["H200"; 4]);
        for (list, expected) in [
            (None, vec![Some(0), Some(1), Some(2), Some(3)]),
            (Some("2,0"), vec![Some(2), Some(0)]),
            (Some("GPU-33,1"), vec![Some(3), Some(1)]),
            (Some("MIG-2-a"), vec![Some(2)]),
            (Some("1,9,0"), vec![Some(1)]),
            (Some("-1"), vec![]),
            (Some(""), vec![]),
        ] {
            assert_eq!(ordinals(&gpus, list, None), expected, "{list:?}");
        }
    }

    #[test]
    fn unequal_gpus_are_certain_only_in_bus_order_or_by_uuid() {
        let gpus = host(&["T4", "H200"]);
        assert_eq!(ordinals(&gpus, None, None), [None, None]);
        assert_eq!(ordinals(&gpus, None, Some("PCI_BUS_ID")), [Some(0), Some(1)]);
        assert_eq!(ordinals(&gpus, Some("GPU-11"), None), [Some(1)]);
        assert_eq!(ordinals(&gpus, Some("0"), None), [None]);
    }

    #[test]
    fn container_devices_are_selected_first() {
        let gpus = host(&["H200"; 4]);
        let env = DeviceVisibilityEnv {
            visible: Some("1".into()),
            order: None,
            container: Some("GPU-2222-beef,3".into()),
        };
        assert_eq!(resolve_devices(&gpus, &env), [Some(GpuId(3))]);
    }

    #[test]
    fn mig_instance_is_the_first_of_the_list() {
        let gpus = host(&["H100", "H100"]);
        let resolve = |visible: Option<&str>, container: Option<&str>| {
            let [visible, container] = [visible, container].map(|text| text.map(str::to_owned));
            let env = DeviceVisibilityEnv { visible, order: None, container };
            resolve_instance(&gpus, &env).map(|mig| mig.uuid.to_string())
        };
        let second = Some("MIG-1-a".to_owned());
        assert_eq!(resolve(Some("MIG-1-a,MIG-0-a"), None), second);
        assert_eq!(resolve(None, Some("MIG-1-a")), second);
        assert_eq!(resolve(Some("1"), Some("MIG-0-a,MIG-1-a")), second);
        for other in [None, Some("0"), Some("GPU-0000-beef"), Some("MIG-9-a"), Some("")] {
            assert_eq!(resolve(other, None), None, "{other:?}");
        }
        let only = resolve_instance(&gpus[..1], &DeviceVisibilityEnv::default());
        assert_eq!(only.map(|mig| &*mig.profile), Some("1g.10gb"));
    }
}
