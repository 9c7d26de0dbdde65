//! Finds the Wasm filters of a document, in whatever shape they come: an Envoy configuration, an
//! extension configuration (ECDS), an EnvoyFilter, a WasmPlugin.

use crate::place::{Step, down, get, string, walk};
use base64::Engine;
use serde_json::Value;

const WASM: &str = "envoy.extensions.filters.http.wasm.v3.Wasm";
/// Top-level keys by which the filter's own configuration is told from Envoy's.
const PLUGIN_KEYS: [&str; 5] = ["endpoints", "clusters", "pools", "policy", "steering"];

/// What a file turned out to be.
pub enum Document {
    /// The filter's own configuration.
    Plugin,
    /// Something that may hold such filters.
    Envoy {
        /// The documents of the file.
        documents: Vec<Value>,
        /// Every Wasm filter in them.
        filters: Vec<Found>,
    },
}

/// A Wasm filter.
pub struct Found {
    /// Where.
    pub path: Vec<Step>,
    /// In which shape.
    pub shape: Shape,
    /// The `PluginConfig`, or a WasmPlugin's `spec`.
    pub body: Value,
    /// Its name there, or the name under which it is looked up.
    label: String,
}

/// How a Wasm filter is written down.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Envoy's `PluginConfig`.
    PluginConfig,
    /// Istio's `WasmPlugin`.
    WasmPlugin,
}

impl Found {
    /// Whether it is Warmroute, going by its names, its module and its configuration.
    pub fn is_warmroute(&self) -> bool {
        let code = down(&self.body, &["vm_config", "code"]);
        let names = [
            self.label.as_str(),
            self.name(),
            self.vm_id(),
            string(&self.body, &["root_id"]),
            string(&self.body, &["url"]),
            code.map_or("", |code| string(code, &["local", "filename"])),
            code.map_or("", |code| string(code, &["remote", "http_uri", "uri"])),
        ];
        names.iter().any(|name| name.contains("warmroute"))
            || self
                .plugin()
                .ok()
                .and_then(|text| serde_json::from_slice::<Value>(&text).ok())
                .is_some_and(|plugin| {
                    let keys = ["endpoints", "clusters", "pools"];
                    keys.iter().any(|key| plugin.get(key).is_some())
                })
    }

    /// Its name for Envoy.
    pub fn name(&self) -> &str {
        match self.shape {
            Shape::PluginConfig => string(&self.body, &["name"]),
            Shape::WasmPlugin => string(&self.body, &["plugin_name"]),
        }
    }

    /// The name of its VM.
    pub fn vm_id(&self) -> &str {
        string(&self.body, &["vm_config", "vm_id"])
    }

    /// The filter's own configuration, as the filter will get it.
    pub fn plugin(&self) -> Result<Vec<u8>, String> {
        let written = match self.shape {
            Shape::PluginConfig => get(&self.body, "configuration"),
            Shape::WasmPlugin => get(&self.body, "plugin_config"),
        };
        let Some(written) = written else {
            return Ok(Vec::new());
        };
        let kind = written.get("@type").and_then(Value::as_str).unwrap_or("");
        let value = written.get("value").unwrap_or(&Value::Null);
        match (kind.rsplit('.').next().unwrap_or(""), value) {
            ("StringValue", Value::String(text)) => Ok(text.clone().into_bytes()),
            ("BytesValue", Value::String(text)) => base64::engine::general_purpose::STANDARD
                .decode(text)
                .map_err(|why| format!("configuration.value: not base64: {why}")),
            ("Struct", value) => Ok(value.to_string().into_bytes()),
            ("", _) => Ok(written.to_string().into_bytes()),
            (kind, _) => Err(format!(
                "configuration: `{kind}` with such a value is none of StringValue, Struct, BytesValue"
            )),
        }
    }
}

/// Reads a file.
pub fn read(text: &str, is_json: bool) -> Result<Document, String> {
    let json: Result<Value, _> = serde_json::from_str(text);
    let documents = match json {
        Ok(document) => vec![document],
        // The filter's own parser words it better, and a configuration may be an empty file.
        Err(_) if is_json || text.trim().is_empty() => return Ok(Document::Plugin),
        Err(_) => serde_saphyr::from_multiple::<Value>(text).map_err(|why| why.to_string())?,
    };
    let own = |document: &Value| PLUGIN_KEYS.iter().any(|key| document.get(key).is_some());
    if documents.iter().any(own) {
        return match documents.as_slice() {
            [_] if serde_json::from_str::<Value>(text).is_ok() => Ok(Document::Plugin),
            _ => Err("the filter's own configuration must be JSON".into()),
        };
    }
    let filters = walk(&documents)
        .into_iter()
        .filter_map(|(path, value)| found(path, value))
        .collect();
    Ok(Document::Envoy { documents, filters })
}

fn found(mut path: Vec<Step>, value: &Value) -> Option<Found> {
    if value.get("kind").is_some_and(|kind| kind == "WasmPlugin") {
        path.push(Step::Key("spec".into()));
        return Some(Found {
            path,
            shape: Shape::WasmPlugin,
            body: value.get("spec")?.clone(),
            label: string(value, &["metadata", "name"]).to_owned(),
        });
    }
    // A filter or an extension configuration: a name, and a `typed_config` of the type Wasm, which
    // may be wrapped in a TypedStruct.
    let typed = get(value, "typed_config")?;
    let kind = string(typed, &["@type"]);
    let body = if kind.ends_with(WASM) {
        get(typed, "config")
    } else if string(typed, &["type_url"]).ends_with(WASM) {
        down(typed, &["value", "config"])
    } else {
        return None;
    };
    Some(Found {
        path,
        shape: Shape::PluginConfig,
        body: body.cloned().unwrap_or(Value::Null),
        label: string(value, &["name"]).to_owned(),
    })
}
