// The table of op implementations, in the order of OpKind: a row for each, one file a kind.
#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/detail/op_traits.h"
#include "src/run/ops/ops.h"

namespace paradyse {
namespace ops {

using Run = void(Frame& frame, const Op& op);
Run embed, embed_adjoint;
Run norm, norm_adjoint;
Run hold_weights, hold_weights_adjoint;
Run gather_weights, gather_weights_adjoint, issue_gather, begin_gather_adjoint, end_gather_adjoint;
Run linear, linear_adjoint, linear_operands, linear_weights;
Run bias, bias_adjoint;
Run qk_norm, qk_norm_adjoint;
Run rope, rope_adjoint;
Run redistribute, redistribute_adjoint, issue_redistribute, begin_redistribute_adjoint,
    end_redistribute_adjoint;
Run attention, attention_adjoint;
Run ring_attention, ring_attention_adjoint;
Run score_attention, score_attention_adjoint;
Run swiglu, swiglu_adjoint;
Run activation, activation_adjoint;
Run dropout, dropout_adjoint;
Run add, add_adjoint;
Run adaptive_norm, adaptive_norm_adjoint;
Run adaptive_gate, adaptive_gate_adjoint;
Run gate, gate_adjoint;
Run line_mean, line_mean_adjoint;
Run spread, spread_adjoint;
Run outer_product, outer_product_adjoint;
Run triangle, triangle_adjoint;
Run mask_rows, mask_rows_adjoint;
Run mask_pairs, mask_pairs_adjoint;
Run batch_input, batch_input_adjoint;
Run flow_matching, flow_matching_adjoint;
Run cross_entropy, cross_entropy_adjoint;

constexpr OpImplementation kTable[] = {
    {OpKind::embed, embed, embed_adjoint},
    {OpKind::norm, norm, norm_adjoint},
    {OpKind::hold_weights, hold_weights, hold_weights_adjoint},
    {OpKind::gather_weights,
     gather_weights,
     gather_weights_adjoint,
     issue_gather,
     begin_gather_adjoint,
     end_gather_adjoint},
    {OpKind::linear, linear, linear_adjoint, nullptr, linear_operands, linear_weights},
    {OpKind::bias, bias, bias_adjoint},
    {OpKind::qk_norm, qk_norm, qk_norm_adjoint},
    {OpKind::rope, rope, rope_adjoint},
    {OpKind::redistribute,
     redistribute,
     redistribute_adjoint,
     issue_redistribute,
     begin_redistribute_adjoint,
     end_redistribute_adjoint},
    {OpKind::attention, attention, attention_adjoint},
    {OpKind::ring_attention, ring_attention, ring_attention_adjoint},
    {OpKind::score_attention, score_attention, score_attention_adjoint},
    {OpKind::swiglu, swiglu, swiglu_adjoint},
    {OpKind::activation, activation, activation_adjoint},
    {OpKind::dropout, dropout, dropout_adjoint},
    {OpKind::add, add, add_adjoint},
    {OpKind::adaptive_norm, adaptive_norm, adaptive_norm_adjoint},
    {OpKind::adaptive_gate, adaptive_gate, adaptive_gate_adjoint},
    {OpKind::gate, gate, gate_adjoint},
    {OpKind::line_mean, line_mean, line_mean_adjoint},
    {OpKind::spread, spread, spread_adjoint},
    {OpKind::outer_product, outer_product, outer_product_adjoint},
    {OpKind::triangle, triangle, triangle_adjoint},
    {OpKind::mask_rows, mask_rows, mask_rows_adjoint},
    {OpKind::mask_pairs, mask_pairs, mask_pairs_adjoint},
    {OpKind::batch_input, batch_input, batch_input_adjoint},
    {OpKind::flow_matching, flow_matching, flow_matching_adjoint},
    {OpKind::cross_entropy, cross_entropy, cross_entropy_adjoint},
};
static_assert(complete(kTable));

}  // namespace ops

const OpImplementation& implementation(OpKind kind) { return ops::kTable[idx(kind)]; }

}  // namespace paradyse
