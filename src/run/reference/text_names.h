// What Hugging Face transformers calls the weights of text models: written down apart from
// src/plan/model/text/, whose names these judge.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "src/plan/model/text/text_shape.h"

namespace paradyse::reference {

// What the parts of a layer, and the parts around the layers, are called; "": the model has none.
struct Names {
  std::string layer = {};
  std::string attention_norm = {};
  std::string q = {}, k = {}, v = {}, fused = {}, o = {};
  std::string mlp_norm = {};
  std::string attention_added_norm = {}, mlp_added_norm = {};
  std::string gate = {}, up = {}, fused_mlp = {}, down = {};
  std::string tokens = {}, positions = {}, segments = {};
  std::string embedding_norm = {};
  std::string last_norm = {};
  std::string transform = {}, transform_norm = {};
  std::string head = {};
  std::string head_bias = {}, tied_head_bias = {};
  bool bare_first = false;  // the first layer's attention has no norm
};

Names names_of(const TextShape& shape);

// Every parameter of the model with its shape.
std::map<std::string, std::vector<std::int64_t>> parameters(const TextShape& shape);

}  // namespace paradyse::reference
