// The table of op kinds: a row for each, in the order of OpKind; the rest of src/plan/ops/ is one
// file a kind.
#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/detail/op_traits.h"

namespace paradyse {

extern const OpTraits kEmbed;
extern const OpTraits kNorm;
extern const OpTraits kHoldWeights;
extern const OpTraits kGatherWeights;
extern const OpTraits kLinear;
extern const OpTraits kBias;
extern const OpTraits kQkNorm;
extern const OpTraits kRope;
extern const OpTraits kRedistribute;
extern const OpTraits kAttention;
extern const OpTraits kRingAttention;
extern const OpTraits kScoreAttention;
extern const OpTraits kSwiglu;
extern const OpTraits kActivation;
extern const OpTraits kDropout;
extern const OpTraits kAdd;
extern const OpTraits kAdaptiveNorm;
extern const OpTraits kAdaptiveGate;
extern const OpTraits kGate;
extern const OpTraits kLineMean;
extern const OpTraits kSpread;
extern const OpTraits kOuterProduct;
extern const OpTraits kTriangle;
extern const OpTraits kMaskRows;
extern const OpTraits kMaskPairs;
extern const OpTraits kBatchInput;
extern const OpTraits kFlowMatching;
extern const OpTraits kCrossEntropy;

namespace {

struct Row {
  OpKind kind;
  const OpTraits* traits;
};
constexpr Row kTable[] = {
    {OpKind::embed, &kEmbed},
    {OpKind::norm, &kNorm},
    {OpKind::hold_weights, &kHoldWeights},
    {OpKind::gather_weights, &kGatherWeights},
    {OpKind::linear, &kLinear},
    {OpKind::bias, &kBias},
    {OpKind::qk_norm, &kQkNorm},
    {OpKind::rope, &kRope},
    {OpKind::redistribute, &kRedistribute},
    {OpKind::attention, &kAttention},
    {OpKind::ring_attention, &kRingAttention},
    {OpKind::score_attention, &kScoreAttention},
    {OpKind::swiglu, &kSwiglu},
    {OpKind::activation, &kActivation},
    {OpKind::dropout, &kDropout},
    {OpKind::add, &kAdd},
    {OpKind::adaptive_norm, &kAdaptiveNorm},
    {OpKind::adaptive_gate, &kAdaptiveGate},
    {OpKind::gate, &kGate},
    {OpKind::line_mean, &kLineMean},
    {OpKind::spread, &kSpread},
    {OpKind::outer_product, &kOuterProduct},
    {OpKind::triangle, &kTriangle},
    {OpKind::mask_rows, &kMaskRows},
    {OpKind::mask_pairs, &kMaskPairs},
    {OpKind::batch_input, &kBatchInput},
    {OpKind::flow_matching, &kFlowMatching},
    {OpKind::cross_entropy, &kCrossEntropy},
};
static_assert(complete(kTable));

}  // namespace

const OpTraits& traits(OpKind kind) { return *kTable[idx(kind)].traits; }

}  // namespace paradyse
