// What Hugging Face calls the weights of each architecture, without ".weight" and ".bias".
#pragma once

#include <string>

namespace paradyse {

struct TextShape;

struct WeightNames {
  std::string layers;  // before a layer's number
  // in a layer
  std::string attention_norm;
  std::string q;
  std::string k;
  std::string v;
  std::string o;
  std::string q_norm;
  std::string k_norm;
  std::string mlp_norm;  // of the MLP's input; of what it adds where that is normed, as above
  std::string attention_added_norm;  // of what is added, where the input is normed, too
  std::string mlp_added_norm;
  std::string gate;
  std::string up;
  std::string down;
  // outside of the layers
  std::string tokens;
  std::string positions;
  std::string segments;
  std::string embedding_norm;
  std::string transform;
  std::string transform_norm;
  std::string last_norm;
  std::string head;
  std::string head_bias;       // whole: it is no ".bias" of the head
  bool fused = false;          // q, k and v are one tensor
  bool fused_by_head = false;  // and in it those of each head stand together
  bool input_first = false;    // matrices are stored [in, out], not [out, in]
  bool first_norm = true;      // the first layer's attention has a norm of its input
};

// Those of the shape's family.  Throws std::logic_error for an architecture that no configuration
// gives.
const WeightNames& weight_names(const TextShape& shape);

}  // namespace paradyse
