#include "src/run/check/continuation.h"

#include <algorithm>
#include <random>
#include <stdexcept>
#include <utility>

#include "src/run/reference/reference.h"

namespace paradyse {

namespace {

// A token by its logits [vocab].  Of several that are as likely the first comes first.
std::int64_t drawn(
    const at::Tensor& logits, const ContinuationRequest& request, std::mt19937_64& random) {
  const at::Tensor wide = logits.to(at::kDouble);  // below 0 nothing overflows, but to no chance
  auto [sorted, order] = ((wide - wide.max()) / request.temperature)
                             .sort(/*stable=*/true, /*dim=*/-1, /*descending=*/true);
  if (request.top_k > 0) {
    sorted = sorted.narrow(0, 0, std::min(request.top_k, sorted.size(0)));
  }
  at::Tensor shares = at::softmax(sorted, -1).cumsum(-1);
  if (request.top_p < 1) {  // up to the first by which the share is reached
    const auto reached = at::searchsorted(shares, at::Scalar(request.top_p)).item<std::int64_t>();
    shares = shares.narrow(0, 0, std::min(reached + 1, shares.size(0)));
  }
  // The first token by which the shares of all up to it exceed a draw from [0, what they have).
  const double draw = static_cast<double>(random() >> 11U) * 0x1p-53 * shares[-1].item<double>();
  const auto place = at::searchsorted(shares, at::Scalar(draw), /*out_int32=*/false, /*right=*/true)
                         .item<std::int64_t>();
  return order[std::min(place, shares.size(0) - 1)].item<std::int64_t>();
}

}  // namespace

std::vector<std::int32_t> continuation(
    const Model& model,
    const std::map<std::string, at::Tensor>& weights,
    const ContinuationRequest& request) {
  if (model.masked_lm) {
    throw std::invalid_argument(
        "a masked language model cannot continue a text: give a causal one");
  }
  if (request.prompt.empty()) {
    throw std::invalid_argument("the prompt is empty: give at least one token");
  }
  const at::InferenceMode guard;
  const reference::Weights merged = reference::merged(model, weights);
  std::mt19937_64 random(request.seed);
  std::vector<std::int32_t> text = request.prompt;
  for (std::int64_t i = 0; i < request.tokens; ++i) {
    const auto begin = request.window > 0 && std::cmp_greater(text.size(), request.window)
                           ? text.end() - request.window
                           : text.begin();
    const at::Tensor last = reference::logits(model, merged, {begin, text.end()})[-1];
    const std::int64_t next =
        request.temperature > 0 ? drawn(last, request, random) : last.argmax().item<std::int64_t>();
    text.push_back(static_cast<std::int32_t>(next));
    if (next == request.end_id) {
      break;
    }
  }
  return {text.begin() + static_cast<std::ptrdiff_t>(request.prompt.size()), text.end()};
}

std::string text_of_bytes(const std::vector<std::int32_t>& tokens) {
  std::string bytes;
  for (const std::int32_t token : tokens) {
    bytes += token < 256 ? static_cast<char>(token) : '\xff';
  }
  std::string text;
  for (std::size_t i = 0; i < bytes.size();) {
    const auto first = static_cast<unsigned char>(bytes[i]);
    const std::size_t size = first < 0x80   ? 1
                             : first < 0xc2 ? 0
                             : first < 0xe0 ? 2
                             : first < 0xf0 ? 3
                             : first < 0xf5 ? 4
                                            : 0;
    bool whole = size > 0 && i + size <= bytes.size();
    for (std::size_t k = 1; whole && k < size; ++k) {
      whole = (static_cast<unsigned char>(bytes[i + k]) & 0xc0U) == 0x80;
    }
    // What is too long for its value, a surrogate, or beyond the last code point.
    if (whole && size > 2) {
      const auto second = static_cast<unsigned char>(bytes[i + 1]);
      whole = !(first == 0xe0 && second < 0xa0) && !(first == 0xed && second >= 0xa0) &&
              !(first == 0xf0 && second < 0x90) && !(first == 0xf4 && second >= 0x90);
    }
    text += whole ? bytes.substr(i, size) : "\ufffd";
    i += whole ? size : 1;
  }
  return text;
}

}  // namespace paradyse
