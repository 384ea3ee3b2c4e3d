// BERT (Devlin et al. 2019) with the head of its masked language model; and RoBERTa (Liu et al.
// 2019), whose positions begin behind the padding id and whose head is called otherwise.
#include "src/plan/model/text/text_families.h"

namespace paradyse {
namespace {

TextShape read_bert(const Keys& keys) {
  TextShape shape;
  shape.architecture = "bert";
  shape.layers = keys.size("num_hidden_layers");
  read_heads(keys, "hidden_size", "num_attention_heads", std::nullopt, shape);
  shape.ffn = keys.size("intermediate_size");
  shape.vocab = keys.size("vocab_size");
  shape.causal = false;
  shape.masked_lm = true;
  if (const char* const positions = "position_embedding_type";
      keys.says(positions) && keys.find(positions) == nullptr) {
    keys.refuse(positions, "accepted is \"absolute\": transformers 4 takes null as no positions");
  }
  shape.learned_positions = true;
  shape.max_positions = keys.size("max_position_embeddings");
  shape.segments = keys.size("type_vocab_size");
  shape.norm_eps = keys.positive("layer_norm_eps", 1e-12);
  shape.layer_norm = shape.post_norm = true;
  shape.activation = read_activation(keys, "hidden_act", "gelu");
  shape.qkv_bias = shape.out_bias = shape.mlp_bias = true;
  shape.tied = keys.flag("tie_word_embeddings", true);
  shape.initializer_range = keys.positive("initializer_range", shape.initializer_range);
  shape.padding_id = keys.padding_id(0, shape.vocab);
  shape.residual_dropout = shape.embedding_dropout = keys.probability("hidden_dropout_prob", 0.1);
  shape.attention_dropout = keys.probability("attention_probs_dropout_prob", 0.1);
  return shape;
}

nlohmann::json write_bert(const TextShape& shape) {
  return {
      {"num_hidden_layers", shape.layers},
      {"hidden_size", shape.hidden},
      {"num_attention_heads", shape.heads},
      {"intermediate_size", shape.ffn},
      {"vocab_size", shape.vocab},
      {"max_position_embeddings", shape.max_positions},
      {"type_vocab_size", shape.segments},
      {"layer_norm_eps", shape.norm_eps},
      {"hidden_act", activation_name(shape.activation)},
      {"tie_word_embeddings", shape.tied},
      {"initializer_range", shape.initializer_range},
      {"pad_token_id", padding_of(shape)},
      {"hidden_dropout_prob", shape.residual_dropout},
      {"attention_probs_dropout_prob", shape.attention_dropout},
      {"is_decoder", false},
  };
}

WeightNames bert_names() {
  WeightNames names;
  names.layers = "bert.encoder.layer.";
  names.attention_norm = "attention.output.LayerNorm";
  names.q = "attention.self.query";
  names.k = "attention.self.key";
  names.v = "attention.self.value";
  names.o = "attention.output.dense";
  names.mlp_norm = "output.LayerNorm";
  names.up = "intermediate.dense";
  names.down = "output.dense";
  names.tokens = "bert.embeddings.word_embeddings";
  names.positions = "bert.embeddings.position_embeddings";
  names.segments = "bert.embeddings.token_type_embeddings";
  names.embedding_norm = "bert.embeddings.LayerNorm";
  names.transform = "cls.predictions.transform.dense";
  names.transform_norm = "cls.predictions.transform.LayerNorm";
  names.head = "cls.predictions.decoder";
  names.head_bias = "cls.predictions.bias";
  return names;
}

// Its documents have no padding: a token with that id would count for no position.
TextShape read_roberta(const Keys& keys) {
  TextShape shape = read_bert(keys);
  shape.architecture = "roberta";
  shape.padding_id = keys.padding_id(1, shape.vocab);
  if (shape.padding_id < 0) {
    keys.refuse("pad_token_id", "accepted is a token id: the first position is pad_token_id + 1");
  }
  shape.padding_in_documents = false;
  shape.position_offset = shape.padding_id + 1;
  shape.max_positions -= shape.position_offset;
  if (shape.max_positions < 1) {
    keys.refuse(
        "max_position_embeddings",
        "accepted is more than pad_token_id + 1 = " + std::to_string(shape.position_offset) +
            ": the first position is this number");
  }
  if (shape.activation != Activation::gelu) {  // the head's, whatever the others have
    shape.transform_activation = Activation::gelu;
  }
  return shape;
}

nlohmann::json write_roberta(const TextShape& shape) {
  nlohmann::json config = write_bert(shape);
  config["max_position_embeddings"] = shape.position_rows();
  return config;
}

WeightNames roberta_names() {
  WeightNames names = bert_names();
  names.layers = "roberta.encoder.layer.";
  names.tokens = "roberta.embeddings.word_embeddings";
  names.positions = "roberta.embeddings.position_embeddings";
  names.segments = "roberta.embeddings.token_type_embeddings";
  names.embedding_norm = "roberta.embeddings.LayerNorm";
  names.transform = "lm_head.dense";
  names.transform_norm = "lm_head.layer_norm";
  names.head = "lm_head.decoder";
  names.head_bias = "lm_head.bias";
  return names;
}

}  // namespace

TextFamily roberta_family() {
  TextFamily family = bert_family();
  family.model_type = "roberta";
  family.architecture = "RobertaForMaskedLM";
  family.sizes["vocab_size"] = 50265;
  family.read = read_roberta;
  family.write = write_roberta;
  family.names = roberta_names();
  return family;
}

TextFamily bert_family() {
  return {
      .model_type = "bert",
      .architecture = "BertForMaskedLM",
      .read_keys =
          {"num_hidden_layers",
           "hidden_size",
           "num_attention_heads",
           "intermediate_size",
           "vocab_size",
           "max_position_embeddings",
           "type_vocab_size",
           "layer_norm_eps",
           "hidden_act",
           "tie_word_embeddings",
           "initializer_range",
           "pad_token_id",
           "hidden_dropout_prob",
           "attention_probs_dropout_prob"},
      .fixed_keys =
          {{"is_decoder", "false", "a causal BERT (decoder) is not implemented"},
           {"position_embedding_type",
            "\"absolute\"",
            "relative position embeddings are not implemented"}},
      .sizes =
          {{"num_hidden_layers", 12},
           {"hidden_size", 768},
           {"num_attention_heads", 12},
           {"intermediate_size", 3072},
           {"vocab_size", 30522},
           {"max_position_embeddings", 512},
           {"type_vocab_size", 2}},
      .read = read_bert,
      .write = write_bert,
      .names = bert_names()};
}

}  // namespace paradyse
