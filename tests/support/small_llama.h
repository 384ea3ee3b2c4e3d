// A LLaMA that a run trains in a moment, as a model.toml.
#pragma once

namespace paradyse::test {

inline constexpr const char* kSmallLlama = R"(
model_type = "llama"
hidden_size = 24
num_hidden_layers = 2
num_attention_heads = 3
num_key_value_heads = 1
intermediate_size = 40
vocab_size = 64
tie_word_embeddings = true
rms_norm_eps = 1e-5
)";

}  // namespace paradyse::test
