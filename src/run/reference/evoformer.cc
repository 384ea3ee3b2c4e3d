// Letters: s sequences, r residues, C channels.  The Evoformer by the algorithms of AlphaFold 2's
// supplement (Jumper et al. 2021).
#include "src/run/reference/evoformer.h"

#include <stdexcept>
#include <utility>

namespace paradyse::reference {

namespace {

// What is added to scores [lines, heads, queries, keys] of keys that do not count, by a mask
// [lines, keys]; undefined where there is none.  Of a line without any that counts it is one number
// for all, which a softmax does not depend on: 0, so that scores keep their digits.
at::Tensor of_keys(const at::Tensor& mask) {
  if (!mask.defined()) {
    return {};
  }
  constexpr double kInf = 1e9;
  const at::Tensor some = mask.amax(-1, /*keepdim=*/true);
  return (kInf * (mask - 1) * some).unsqueeze(1).unsqueeze(1);
}

// Either may be undefined.
at::Tensor together(const at::Tensor& a, const at::Tensor& b) {
  return !a.defined() ? b : !b.defined() ? a : a + b;
}

// Algorithms 7, 8, 13 and 14, along the last dim but one: gated self-attention; `bias` [heads, L,
// L].
at::Tensor gated_attention(
    const at::Tensor& xn,
    const Weights& weights,
    const std::string& core,
    std::int64_t count,
    const at::Tensor& bias) {
  const at::Tensor o = attend(
      linear(xn, weights, core + "linear_q"),
      linear(xn, weights, core + "linear_k"),
      linear(xn, weights, core + "linear_v"),
      count,
      count,
      bias);
  return linear(
      at::sigmoid(linear(xn, weights, core + "linear_g")) * o, weights, core + "linear_o");
}

// Algorithms 9 and 15.
at::Tensor transition(const at::Tensor& x, const Weights& weights, const std::string& name) {
  const at::Tensor xn = layer_norm(x, weights, name + ".layer_norm");
  return linear(at::relu(linear(xn, weights, name + ".linear_1")), weights, name + ".linear_2");
}

// Algorithms 11 and 12.
at::Tensor triangle(
    const at::Tensor& z, const Weights& weights, const std::string& name, bool incoming) {
  const at::Tensor zn = layer_norm(z, weights, name + ".layer_norm_in");
  const auto operand = [&](const char* which) {
    const std::string own = name + ".linear_" + which;
    return at::sigmoid(linear(zn, weights, own + "_g")) * linear(zn, weights, own + "_p");
  };
  const at::Tensor a = operand("a");
  const at::Tensor b = operand("b");
  const at::Tensor o =
      incoming ? at::einsum("kic,kjc->ijc", {a, b}) : at::einsum("ikc,jkc->ijc", {a, b});
  return at::sigmoid(linear(zn, weights, name + ".linear_g")) *
         linear(layer_norm(o, weights, name + ".layer_norm_out"), weights, name + ".linear_z");
}

// Where weights are that are no attention of the MSA: of the MSA's own parts, and of pairs.
std::string of_msa(const EvoformerShape& shape, const std::string& name) {
  return shape.openfold ? name : "core." + name;
}
std::string of_pairs(const EvoformerShape& shape, const std::string& name) {
  return (shape.openfold ? "pair_stack." : "core.") + name;
}

// The sum of products of successive columns of x, each with the linear of a name.
at::Tensor embedded(
    const at::Tensor& x, const Weights& weights, const std::vector<std::string>& names) {
  at::Tensor sum;
  std::int64_t first = 0;
  for (const std::string& name : names) {
    const std::int64_t columns = weights.at(name + ".weight").size(1);
    const at::Tensor y = linear(x.narrow(-1, first, columns), weights, name);
    sum = sum.defined() ? sum + y : y;
    first += columns;
  }
  return sum;
}

// Of a stream's rows, [.., 1], without that last dim; undefined where all count.
at::Tensor mask_in(const Streams& in, const std::string& name) {
  const auto found = in.find(name);
  return found == in.end() ? at::Tensor() : found->second.squeeze(-1);
}

}  // namespace

at::Tensor evoformer_part(
    const EvoformerShape& shape,
    const std::string& part,
    const Weights& weights,
    const Streams& in) {
  if (part.starts_with(kExtra)) {  // as in a trunk of such a stack, whose m is e
    Streams as_trunk = in;
    if (const auto e = in.find("e"); e != in.end()) {
      as_trunk["m"] = e->second;
    }
    if (const auto mask = in.find("extra_msa_mask"); mask != in.end()) {
      as_trunk["msa_mask"] = mask->second;
    }
    const std::string own = part.substr(std::string(kExtra).size());
    return evoformer_part(extra_stack(shape), own, weights, as_trunk);
  }
  const auto stream = [&](const char* name) -> const at::Tensor& { return in.at(name); };
  const at::Tensor mask = mask_in(in, "msa_mask");  // [s, r]
  const at::Tensor columns = mask.defined() ? mask.t() : mask;
  if (part == "row_attention") {
    const at::Tensor mn = layer_norm(stream("m"), weights, "msa_att_row.layer_norm_m");
    const at::Tensor zn = layer_norm(stream("z"), weights, "msa_att_row.layer_norm_z");
    const at::Tensor bias = linear(zn, weights, "msa_att_row.linear_z").permute({2, 0, 1});
    return stream("m") +
           gated_attention(
               mn, weights, "msa_att_row.mha.", shape.msa_heads, together(of_keys(mask), bias));
  }
  if (part == "column_attention") {
    const at::Tensor mn =
        layer_norm(stream("m"), weights, "msa_att_col._msa_att.layer_norm_m").transpose(0, 1);
    return stream("m") +
           gated_attention(
               mn, weights, "msa_att_col._msa_att.mha.", shape.msa_heads, of_keys(columns))
               .transpose(0, 1);
  }
  if (part == "global_column_attention") {  // algorithm 19
    const std::string core = "msa_att_col.global_attention.";
    const at::Tensor mn =
        layer_norm(stream("m"), weights, "msa_att_col.layer_norm_m").transpose(0, 1);
    const at::Tensor mean = mask.defined() ? (mn * columns.unsqueeze(-1)).sum(1, /*keepdim=*/true) /
                                                 columns.sum(1).clamp_min(1).view({-1, 1, 1})
                                           : mn.mean(1, /*keepdim=*/true);
    const at::Tensor o = attend(
        linear(mean, weights, core + "linear_q"),
        linear(mn, weights, core + "linear_k"),
        linear(mn, weights, core + "linear_v"),
        shape.msa_heads,
        /*key_heads=*/1,
        of_keys(columns));
    const at::Tensor y =
        linear(at::sigmoid(linear(mn, weights, core + "linear_g")) * o, weights, core + "linear_o");
    return stream("m") + y.transpose(0, 1);
  }
  if (part == "msa_transition") {
    return stream("m") + transition(stream("m"), weights, of_msa(shape, "msa_transition"));
  }
  if (part == "outer_product_mean") {  // algorithm 10
    const std::string name = of_msa(shape, "outer_product_mean");
    const at::Tensor mn = layer_norm(stream("m"), weights, name + ".layer_norm");
    const auto side = [&](const char* which) {
      const at::Tensor y = linear(mn, weights, name + which);
      return mask.defined() ? y * mask.unsqueeze(-1) : y;
    };
    const at::Tensor o = at::einsum("sia,sjb->ijab", {side(".linear_1"), side(".linear_2")});
    const at::Tensor y = linear(o.flatten(-2), weights, name + ".linear_out");
    // what is divided is the product with its bias, by S + 1e-3, as in AlphaFold and OpenFold; with
    // a mask S are the sequences that count for both residues
    return stream("z") + (mask.defined() ? y / (at::matmul(mask.t(), mask).unsqueeze(-1) + 1e-3)
                                         : y / (static_cast<double>(mn.size(0)) + 1e-3));
  }
  if (part == "triangle_outgoing" || part == "triangle_incoming") {
    const bool incoming = part == "triangle_incoming";
    const std::string name = of_pairs(shape, incoming ? "tri_mul_in" : "tri_mul_out");
    return stream("z") + triangle(stream("z"), weights, name, incoming);
  }
  if (part == "triangle_starting" || part == "triangle_ending") {
    // along the columns of z is along the rows of its transpose, whose bias is transposed, too
    const bool ending = part == "triangle_ending";
    const std::string name = of_pairs(shape, ending ? "tri_att_end." : "tri_att_start.");
    const at::Tensor z = ending ? stream("z").transpose(0, 1) : stream("z");
    const at::Tensor zn = layer_norm(z, weights, name + "layer_norm");
    const at::Tensor bias = linear(zn, weights, name + "linear").permute({2, 0, 1});
    const at::Tensor y = gated_attention(zn, weights, name + "mha.", shape.pair_heads, bias);
    return stream("z") + (ending ? y.transpose(0, 1) : y);
  }
  if (part == "pair_transition") {
    return stream("z") + transition(stream("z"), weights, of_pairs(shape, "pair_transition"));
  }
  throw std::invalid_argument("reference: evoformer has no part '" + part + "'");
}

namespace {

struct PartOfBlock {
  std::string name;
  std::string stream;  // that it writes
};

// Of one of the trunk's blocks.
std::vector<PartOfBlock> parts_of_block(const EvoformerShape& shape) {
  std::vector<PartOfBlock> parts = {
      {"row_attention", "m"},
      {shape.global_column ? "global_column_attention" : "column_attention", "m"},
      {"msa_transition", "m"},
      {"outer_product_mean", "z"},
      {"triangle_outgoing", "z"},
      {"triangle_incoming", "z"},
      {"triangle_starting", "z"},
      {"triangle_ending", "z"},
      {"pair_transition", "z"}};
  if (shape.multimer) {
    parts.insert(parts.begin(), parts[3]);
    parts.erase(parts.begin() + 4);
  }
  return parts;
}

// Runs the blocks of a stack, weights as `prefix` begins; `site`: of the next part's dropout.
void run_blocks(
    const EvoformerShape& shape,
    const std::vector<PartOfBlock>& parts,
    const Weights& weights,
    const std::string& prefix,
    Streams& streams,
    std::int64_t& site,
    const Draws& draws) {
  for (std::int64_t layer = 0; layer < shape.blocks; ++layer) {
    const Weights own = of_layer(weights, layer, prefix);
    for (const auto& [name, stream] : parts) {
      const at::Tensor before = streams.at(stream);
      const at::Tensor after = evoformer_part(shape, name, own, streams);
      // what has dropout (algorithm 6), along which dim its mask is one, and how rows count: dims
      // in the order of their names
      const std::int64_t of_dim = before.size(1);
      if (draws.seed && name == "row_attention") {
        streams[stream] =
            before + dropped(after - before, shape.msa_dropout, site, {0, before.size(0)}, draws);
      } else if (draws.seed && name.starts_with("triangle_")) {
        const bool ending = name == "triangle_ending";
        const Sharing sharing{.dim = ending ? 1 : 0, .stride = ending ? of_dim : 1};
        streams[stream] =
            before + dropped(after - before, shape.pair_dropout, site, sharing, draws);
      } else {
        streams[stream] = after;
      }
      ++site;
    }
  }
}

}  // namespace

// The sum of cross-entropies of the letters that have a label.
at::Tensor evoformer_loss(
    const EvoformerShape& shape, const Weights& weights, const Item& sample, const Draws& draws) {
  std::vector<std::string> of_m = {"linear_m"};
  std::vector<std::string> of_z = {"linear_z"};
  if (shape.openfold) {
    of_m = {"linear_tf_m", "linear_msa_m"};
    of_z = {"linear_tf_z_i", "linear_tf_z_j", "linear_relpos"};
  }
  for (auto* const names : {&of_m, &of_z}) {
    for (std::string& name : *names) {
      name = "input_embedder." + name;
    }
  }
  Streams streams = {
      {"m", embedded(sample.inputs->at("msa").whole(), weights, of_m)},
      {"z", embedded(sample.inputs->at("pair").whole(), weights, of_z)}};
  const auto add_mask = [&](const char* of, Streams& to) {
    if (shape.msa_mask) {
      to["msa_mask"] = sample.inputs->at(of).whole();
    }
  };
  add_mask("msa_mask", streams);
  std::int64_t site = 3;         // of the first part behind the embeddings
  if (shape.extra_blocks > 0) {  // algorithm 18: its m is the embedding of extra sequences
    ++site;
    Streams extra = {
        {"m",
         embedded(sample.inputs->at("extra_msa").whole(), weights, {"extra_msa_embedder.linear"})},
        {"z", streams.at("z")}};
    add_mask("extra_msa_mask", extra);
    const EvoformerShape stack = extra_stack(shape);
    run_blocks(
        stack, parts_of_block(stack), weights, "extra_msa_stack.blocks.", extra, site, draws);
    streams["z"] = extra.at("z");
  }
  run_blocks(
      shape,
      parts_of_block(shape),
      weights,
      shape.openfold ? "evoformer.blocks." : "blocks.",
      streams,
      site,
      draws);
  const at::Tensor logits = linear(
      streams.at("m"),
      weights,
      shape.openfold ? "aux_heads.masked_msa.linear" : "masked_msa_head.linear");
  const at::Tensor scores = at::log_softmax(logits, -1).flatten(0, 1);
  const at::ArrayRef<std::int32_t> labels(sample.labels.data(), sample.labels.size());
  const at::Tensor label = at::tensor(labels, at::kLong).to(scores.device());
  const at::Tensor of_label = scores.gather(1, label.clamp_min(0).unsqueeze(1)).squeeze(1);
  return -of_label.masked_fill(label < 0, 0).sum();
}

}  // namespace paradyse::reference
