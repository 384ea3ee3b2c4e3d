// Items of a batch: documents, or samples of a model of several dims.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "paradyse/plan/detail/layout.h"
#include "paradyse/plan/model.h"
#include "paradyse/run/data.h"

namespace paradyse {

// Token ids, or labels, of a document, wherever they lie.
using TokenView = std::span<const std::int32_t>;

// An input of a sample, on the host: a tensor, or a rule by which a rank makes what it holds of it
// when it needs it, so that no rank holds another's share.
class SampleInput {
 public:
  // Writes those of the numbers that `held` has of each dim, to `piece`, which is of these sizes,
  // on the host, of any floating-point type and strides.
  using Make = std::function<void(std::span<const Piece> held, const at::Tensor& piece)>;

  SampleInput() = default;
  SampleInput(at::Tensor whole);  // NOLINT(google-explicit-constructor): a tensor is an input
  // The numbers that it writes have to be finite.
  SampleInput(std::vector<std::int64_t> sizes, Make make);

  [[nodiscard]] at::IntArrayRef sizes() const { return sizes_; }
  [[nodiscard]] std::int64_t numel() const;
  // Undefined where it is a rule.
  [[nodiscard]] const at::Tensor& tensor() const { return tensor_; }
  // The tensor, or what the rule makes, in float64.
  [[nodiscard]] at::Tensor whole() const;
  // What `held` has of each dim, to `piece` of these sizes, of any type, strides and device.
  void copy(std::span<const Piece> held, const at::Tensor& piece) const;

 private:
  std::vector<std::int64_t> sizes_;
  at::Tensor tensor_;
  Make make_;
};

// By the names of Model::inputs(), with their dims but "batch" in their order.
using SampleInputs = std::map<std::string, SampleInput>;

struct Sample {
  SampleInputs inputs;
  // Of a model that predicts letters: for each row of the stream that the loss is of, in the order
  // of its dims, the class to predict; negative: none.  Empty: the model predicts an input.
  std::vector<std::int32_t> labels = {};
};

// One of a batch, as a data set yields it: a view of a document or of a sample, which lives longer.
struct Item {
  Item() = default;
  // NOLINTBEGIN(google-explicit-constructor): these are items
  Item(TokenView ids, TokenView labels_of_ids = {}) : tokens(ids), labels(labels_of_ids) {}
  Item(const Document& document)
      : Item(document.tokens, document.labels ? TokenView(*document.labels) : TokenView()) {}
  Item(const Sample& sample) : labels(sample.labels), inputs(&sample.inputs) {}
  // NOLINTEND(google-explicit-constructor)

  TokenView tokens = {};
  // Those of a sample; or of a document for every token a label, unshifted: token i is scored
  // against label i of a masked LM, else against label i + 1.  Negative ones do not count.  Empty,
  // which a masked LM does not take: the tokens.
  TokenView labels = {};
  const SampleInputs* inputs = nullptr;  // of a sample
};

// Of documents, of their tokens alone, or of samples.  All of them live longer.
template <typename Shown>
std::vector<Item> items_of(const std::vector<Shown>& shown) {
  return {shown.begin(), shown.end()};
}

// Of a sample: the sizes of these row dims, but "batch".  Throws std::invalid_argument for one that
// `dims` (Plan::dims) have not got.
std::vector<std::int64_t> row_sizes(
    const std::vector<std::string>& rows, const std::map<std::string, std::int64_t>& dims);

// What the loss of an item is the mean of: labels that count, or elements of what is predicted.
std::int64_t scored(const Item& item, const Model& model);

// Of an item of a model of several dims.  Throws std::invalid_argument, naming input and sizes,
// where one is missing or not as the model and `dims` (Plan::dims) have it, and for labels of
// another number than rows.
void check_sizes(
    const Item& item, const Model& model, const std::map<std::string, std::int64_t>& dims);
// The same, and for tensors that are not finite, masks with numbers other than 0 and 1, and labels
// that are no classes.
void check_sample(
    const Item& item, const Model& model, const std::map<std::string, std::int64_t>& dims);

}  // namespace paradyse
