//! Names and numbers as text. Addresses in JSON are hexadecimal, because many readers round numbers above 2^53.

/// The part of a path behind the last slash; names in brackets (`[anon:a/b]`) are whole.
pub fn file_name(path: &str) -> &str {
    if path.starts_with('[') {
        return path;
    }
    path.rsplit('/').find(|name| !name.is_empty()).unwrap_or(path)
}

/// An address: `"0x7f00"`.
pub mod hex {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    /// For `#[serde(with)]`.
    pub fn serialize<S: Serializer>(value: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{value:#x}"))
    }

    /// For `#[serde(with)]`.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse(&text).ok_or_else(|| D::Error::custom(format_args!("{text:?} is no hexadecimal number")))
    }

    /// The number in `0x7f00`.
    pub fn parse(text: &str) -> Option<u64> {
        u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
    }
}

/// Bytes, if there are any: `"7f454c46"`, or null.
pub mod hex_bytes {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    /// For `#[serde(with)]`.
    pub fn serialize<S: Serializer>(bytes: &Option<Vec<u8>>, serializer: S) -> Result<S::Ok, S::Error> {
        match bytes {
            Some(bytes) => serializer.serialize_some(&text(bytes)),
            None => serializer.serialize_none(),
        }
    }

    /// For `#[serde(with)]`.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<u8>>, D::Error> {
        let Some(text) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
        let digits: Option<Vec<u8>> =
            text.chars().map(|digit| digit.to_digit(16).and_then(|digit| u8::try_from(digit).ok())).collect();
        match digits {
            Some(digits) if digits.len() % 2 == 0 => {
                Ok(Some(digits.chunks(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit)).collect()))
            }
            _ => Err(D::Error::custom(format_args!("{text:?} is no sequence of bytes"))),
        }
    }

    /// Two digits for each byte.
    pub fn text(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
