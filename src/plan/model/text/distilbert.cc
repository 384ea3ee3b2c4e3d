// DistilBERT (Sanh et al. 2019) with the head of its masked language model: a BERT without
// segments, and without dropout of what attention adds.
#include "src/plan/model/text/text_families.h"

namespace paradyse {
namespace {

TextShape read_distilbert(const Keys& keys) {
  TextShape shape;
  shape.architecture = "distilbert";
  shape.layers = keys.size("n_layers");
  read_heads(keys, "dim", "n_heads", std::nullopt, shape);
  shape.ffn = keys.size("hidden_dim");
  shape.vocab = keys.size("vocab_size");
  shape.causal = false;
  shape.masked_lm = true;
  shape.learned_positions = true;
  shape.max_positions = keys.size("max_position_embeddings");
  shape.norm_eps = 1e-12;  // there is no key
  shape.layer_norm = shape.post_norm = true;
  shape.activation = read_activation(keys, "activation", "gelu");
  shape.qkv_bias = shape.out_bias = shape.mlp_bias = true;
  shape.tied = keys.flag("tie_word_embeddings", true);
  shape.initializer_range = keys.positive("initializer_range", shape.initializer_range);
  shape.padding_id = keys.padding_id(0, shape.vocab);
  shape.residual_dropout = shape.embedding_dropout = keys.probability("dropout", 0.1);
  if (shape.residual_dropout > 0) {
    shape.attention_output_dropout = 0;
  }
  shape.attention_dropout = keys.probability("attention_dropout", 0.1);
  return shape;
}

nlohmann::json write_distilbert(const TextShape& shape) {
  return {
      {"n_layers", shape.layers},
      {"dim", shape.hidden},
      {"n_heads", shape.heads},
      {"hidden_dim", shape.ffn},
      {"vocab_size", shape.vocab},
      {"max_position_embeddings", shape.max_positions},
      {"sinusoidal_pos_embds", false},
      {"activation", activation_name(shape.activation)},
      {"tie_word_embeddings", shape.tied},
      {"initializer_range", shape.initializer_range},
      {"pad_token_id", padding_of(shape)},
      {"dropout", shape.residual_dropout},
      {"attention_dropout", shape.attention_dropout},
  };
}

WeightNames distilbert_names() {
  WeightNames names;
  names.layers = "distilbert.transformer.layer.";
  names.attention_norm = "sa_layer_norm";
  names.q = "attention.q_lin";
  names.k = "attention.k_lin";
  names.v = "attention.v_lin";
  names.o = "attention.out_lin";
  names.mlp_norm = "output_layer_norm";
  names.up = "ffn.lin1";
  names.down = "ffn.lin2";
  names.tokens = "distilbert.embeddings.word_embeddings";
  names.positions = "distilbert.embeddings.position_embeddings";
  names.embedding_norm = "distilbert.embeddings.LayerNorm";
  names.transform = "vocab_transform";
  names.transform_norm = "vocab_layer_norm";
  names.head = "vocab_projector";
  names.head_bias = "vocab_projector.bias";
  return names;
}

}  // namespace

TextFamily distilbert_family() {
  return {
      .model_type = "distilbert",
      .architecture = "DistilBertForMaskedLM",
      .read_keys =
          {"n_layers",
           "dim",
           "n_heads",
           "hidden_dim",
           "vocab_size",
           "max_position_embeddings",
           "activation",
           "tie_word_embeddings",
           "tie_weights_",  // what old files say of how weights are exported
           "initializer_range",
           "pad_token_id",
           "dropout",
           "attention_dropout",
           "qa_dropout",            // of heads for other tasks
           "seq_classif_dropout"},  // the same
      .fixed_keys =
          {{"sinusoidal_pos_embds",
            "false",
            "positions that are not learned are not implemented for DistilBERT"}},
      .sizes =
          {{"n_layers", 6},
           {"dim", 768},
           {"n_heads", 12},
           {"hidden_dim", 3072},
           {"vocab_size", 30522},
           {"max_position_embeddings", 512}},
      .read = read_distilbert,
      .write = write_distilbert,
      .names = distilbert_names(),
      .also_called = {
          {"hidden_size", "dim"},
          {"num_attention_heads", "n_heads"},
          {"num_hidden_layers", "n_layers"}}};
}

}  // namespace paradyse
