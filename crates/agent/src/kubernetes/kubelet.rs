//! Queries a node's kubelet for the containers of its pods.

use std::collections::HashMap;

use anyhow::{Context, Result, anyhow};
use engine::model::Pod;
use serde::Deserialize;

use crate::delivery::http_client::HttpClient;

/// Maximum size of a response: some hundred pods of some ten KiB each.
const MAX_RESPONSE_BYTES: u64 = 64 << 20;

/// Maximum number of containers kept from a response, and maximum length of a name.
const MAX_CONTAINERS: usize = 16_384;
const MAX_NAME_LEN: usize = 253;

/// Pods by container id.
pub(crate) type Pods = HashMap<Box<str>, Pod>;

/// The relevant fields of a pod list.
#[derive(Deserialize)]
struct PodList {
    #[serde(default)]
    items: Vec<Item>,
}

#[derive(Deserialize)]
struct Item {
    metadata: Metadata,
    #[serde(default)]
    status: Status,
}

#[derive(Deserialize)]
struct Metadata {
    name: Box<str>,
    namespace: Box<str>,
    uid: Box<str>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    container_statuses: Vec<ContainerStatus>,
    init_container_statuses: Vec<ContainerStatus>,
    ephemeral_container_statuses: Vec<ContainerStatus>,
}

#[derive(Deserialize)]
struct ContainerStatus {
    name: Box<str>,
    /// `containerd://<id>`; absent while it does not run.
    #[serde(default, rename = "containerID")]
    id: Option<Box<str>>,
}

/// Queries the kubelet once.
pub(super) fn list_pods(client: &HttpClient) -> Result<Pods> {
    let text = client.get("/pods", MAX_RESPONSE_BYTES).map_err(|error| {
        let advice = match error.status {
            Some(401) => ": the token is not accepted; set a valid one (kubernetes.token_file)",
            Some(403) => {
                ": the token may not read pods: allow it `get` on `nodes/pods` (before Kubernetes \
                 1.33 on `nodes/proxy`)"
            }
            Some(_) => ": not a kubelet, or unhealthy",
            None => "",
        };
        anyhow!("{}: {}{advice}", client.shown(), error.reason)
    })?;
    let list: PodList = serde_json::from_slice(&text)
        .with_context(|| format!("the response of {} is not a pod list", client.shown()))?;
    Ok(pods(list))
}

fn pods(list: PodList) -> Pods {
    let mut pods = Pods::new();
    for Item { metadata, status } in list.items {
        let Status { container_statuses, init_container_statuses, ephemeral_container_statuses } =
            status;
        let all = container_statuses
            .into_iter()
            .chain(init_container_statuses)
            .chain(ephemeral_container_statuses);
        for container in all {
            let id = container.id.as_deref().and_then(|id| id.split_once("://"));
            let Some((_, id)) = id else { continue };
            let texts = [&metadata.name, &metadata.namespace, &metadata.uid, &container.name];
            let fits = texts.iter().all(|text| text.len() <= MAX_NAME_LEN);
            if !fits || id.len() > MAX_NAME_LEN || pods.len() >= MAX_CONTAINERS {
                continue;
            }
            let pod = Pod {
                uid: metadata.uid.clone(),
                name: Some(metadata.name.clone()),
                namespace: Some(metadata.namespace.clone()),
                container: Some(container.name),
            };
            pods.insert(id.into(), pod);
        }
    }
    pods
}
