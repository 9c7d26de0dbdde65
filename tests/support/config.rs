//! Turns a shipped Envoy configuration into one for a test: other ports, endpoints and plugin
//! configuration, everything else as shipped.

use super::eds::EdsFile;
use super::mock::Port;
use super::root;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

const ADMIN_PORT: &str = "/admin/address/socket_address/port_value";

/// A shipped configuration, `envoy/*.yaml`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The filter names the endpoint in a header of an ORIGINAL_DST cluster.
    OriginalDst,
    /// The filter names the endpoint in filter state.
    FilterState,
    /// The filter gives the cluster a ranked list.
    OverrideHost,
    /// The filter names two endpoints in headers of a composite cluster.
    Composite,
    /// Round robin without the filter.
    Plain,
}

impl Mode {
    /// The modes that have the filter.
    pub const STEERING: [Self; 4] = [
        Self::OriginalDst,
        Self::FilterState,
        Self::OverrideHost,
        Self::Composite,
    ];

    /// The name in the plugin configuration, and of the file.
    pub fn name(self) -> &'static str {
        match self {
            Self::OriginalDst => "original_dst",
            Self::FilterState => "filter_state",
            Self::OverrideHost => "override_host",
            Self::Composite => "composite",
            Self::Plain => "plain",
        }
    }

    /// The shipped file.
    pub fn file(self) -> PathBuf {
        root().join("envoy").join(format!("{}.yaml", self.name()))
    }
}

/// An Envoy configuration that tests may change before Envoy reads it (as JSON).
#[derive(Clone, Debug)]
pub struct EnvoyConfig(
    pub Value,
    /// Of the admin interface, if it is named before Envoy starts: nobody else is to get it until then.
    Option<Port>,
);

impl EnvoyConfig {
    /// The shipped configuration of `mode`, on free ports.
    pub fn shipped(mode: Mode) -> Result<Self, String> {
        let mut config = Self::on_free_ports(&mode.file())?;
        if mode != Mode::Plain {
            config.use_module()?;
        }
        Ok(config)
    }

    /// The shipped configuration with discovery, on free ports. Its cluster `vllm_endpoints` reads `file`, and
    /// `warmroute_admin` leads to Envoy's admin interface.
    pub fn discovery(file: &EdsFile) -> Result<Self, String> {
        let mut config = Self::on_free_ports(&root().join("envoy/discovery.yaml"))?;
        config.use_module()?;
        let endpoints = config.cluster("vllm_endpoints")?;
        set(
            endpoints,
            "/eds_cluster_config/eds_config/path_config_source/path",
            json!(file.path().display().to_string()),
        )?;
        // The cluster must know it before Envoy does.
        let port = Port::keep(SocketAddr::from(([127, 0, 0, 1], 0))).map_err(|e| e.to_string())?;
        let admin = port.address();
        set(&mut config.0, ADMIN_PORT, json!(admin.port()))?;
        config.1 = Some(port);
        config.admin_at(admin)?;
        Ok(config)
    }

    /// Lets Envoy's admin interface listen where that of `other` would.
    pub fn admin_port_of(&mut self, other: &Self) -> Result<(), String> {
        let port = other.0.pointer(ADMIN_PORT).cloned().unwrap_or_default();
        self.1.clone_from(&other.1);
        set(&mut self.0, ADMIN_PORT, port)
    }

    /// Lets `warmroute_admin` lead to `admin`.
    pub fn admin_at(&mut self, admin: SocketAddr) -> Result<(), String> {
        let members = "/load_assignment/endpoints/0/lb_endpoints";
        set(
            self.cluster("warmroute_admin")?,
            members,
            json!([member(&admin)]),
        )
    }

    /// The cluster of this name.
    pub fn cluster(&mut self, name: &str) -> Result<&mut Value, String> {
        let clusters = self.0.pointer_mut("/static_resources/clusters");
        let mut clusters = clusters.and_then(Value::as_array_mut).into_iter().flatten();
        clusters
            .find(|cluster| cluster.get("name").is_some_and(|known| known == name))
            .ok_or_else(|| format!("the configuration has no cluster called {name}"))
    }

    fn on_free_ports(file: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
        let mut config: Value =
            serde_saphyr::from_str(&text).map_err(|e| format!("{}: {e}", file.display()))?;
        set(&mut config, ADMIN_PORT, json!(0))?;
        set(
            &mut config,
            "/static_resources/listeners/0/address/socket_address/port_value",
            json!(0),
        )?;
        Ok(Self(config, None))
    }

    fn use_module(&mut self) -> Result<(), String> {
        let module = json!(module()?.display().to_string());
        set(self.wasm()?, "/vm_config/code/local/filename", module)
    }

    /// Puts `endpoints` in place of the shipped ones, for Envoy's cluster and for the filter.
    pub fn endpoints(mut self, endpoints: &[SocketAddr]) -> Result<Self, String> {
        let members: Vec<Value> = endpoints.iter().map(member).collect();
        let clusters = self.0.pointer_mut("/static_resources/clusters");
        for cluster in clusters.and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(shipped) = cluster.pointer_mut("/load_assignment/endpoints/0/lb_endpoints")
            {
                *shipped = Value::Array(members.clone());
            }
        }
        if self.wasm().is_err() {
            return Ok(self);
        }
        let listed: Vec<Value> = endpoints
            .iter()
            .map(|e| json!({"address": e.to_string()}))
            .collect();
        self.plugin(&json!({ "endpoints": listed }))
    }

    /// Lays the keys of `changes` over the shipped plugin configuration; `null` removes a key.
    pub fn plugin(mut self, changes: &Value) -> Result<Self, String> {
        let changes = changes
            .as_object()
            .ok_or("plugin changes are no JSON object")?;
        if changes.is_empty() {
            return Ok(self);
        }
        let text = self
            .wasm()?
            .pointer_mut("/configuration/value")
            .ok_or("the filter has no configuration")?;
        let mut plugin: serde_json::Map<String, Value> =
            serde_json::from_str(text.as_str().unwrap_or_default())
                .map_err(|e| format!("shipped plugin configuration: {e}"))?;
        for (key, value) in changes {
            if value.is_null() {
                plugin.remove(key);
            } else {
                plugin.insert(key.clone(), value.clone());
            }
        }
        *text = Value::String(Value::Object(plugin).to_string());
        Ok(self)
    }

    /// Replaces the whole plugin configuration by `text`, which need not be valid.
    pub fn plugin_text(mut self, text: &str) -> Result<Self, String> {
        set(self.wasm()?, "/configuration/value", json!(text))?;
        Ok(self)
    }

    /// The `PluginConfig` of the filter.
    pub fn wasm(&mut self) -> Result<&mut Value, String> {
        let filters = self.0.pointer_mut(
            "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config/http_filters",
        );
        filters
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
            .find(|f| f.get("name").is_some_and(|name| name == "warmroute"))
            .and_then(|f| f.pointer_mut("/typed_config/config"))
            .ok_or_else(|| "the configuration has no filter called warmroute".to_owned())
    }
}

/// An endpoint as Envoy's clusters list it.
pub fn member(address: &SocketAddr) -> Value {
    let address = json!({"address": address.ip().to_string(), "port_value": address.port()});
    json!({"endpoint": {"address": {"socket_address": address}}})
}

/// Sets what is at `pointer`, which must be there.
pub fn set(config: &mut Value, pointer: &str, value: Value) -> Result<(), String> {
    let place = config
        .pointer_mut(pointer)
        .ok_or_else(|| format!("the Envoy configuration has nothing at {pointer}"))?;
    *place = value;
    Ok(())
}

/// The module under test: `$WARMROUTE_WASM`, else where `make build` puts it.
pub fn module() -> Result<PathBuf, String> {
    let built = "target/wasm32-unknown-unknown/release/warmroute.wasm";
    found("WARMROUTE_WASM", built, "make build")
}

/// The module that panics on demand: `$WARMROUTE_CHAOS_WASM`, else where `make build-chaos` puts it.
pub fn chaos_module() -> Result<PathBuf, String> {
    let built = "target/chaos/wasm32-unknown-unknown/tools/warmroute.wasm";
    found("WARMROUTE_CHAOS_WASM", built, "make build-chaos")
}

fn found(variable: &str, built: &str, command: &str) -> Result<PathBuf, String> {
    let file = match std::env::var_os(variable) {
        Some(file) => PathBuf::from(file),
        None => root().join(built),
    };
    if file.is_file() {
        Ok(file)
    } else {
        Err(format!("{} is missing: run `{command}`", file.display()))
    }
}
