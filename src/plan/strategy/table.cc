#include "src/plan/strategy/table.h"

#include "src/plan/strategy/attention/places.h"

namespace paradyse {

Strategy megatron_ts();
Strategy data_z();
Strategy megatron_cz();
Strategy colossal_z();
Strategy metp();
Strategy usp();
Strategy all_gather_kv();
Strategy local_attention();
Strategy branch_attention();
Strategy cross_attention();
Strategy global_local();
Strategy global_switch();
Strategy outer_product_gather();
Strategy outer_product_scatter();
Strategy triangle_gather();
Strategy triangle_scatter();
Strategy triangle_channels();
Strategy mlp_hold();
Strategy mlp_gather();
Strategy mlp_pass();
Strategy embedding();
Strategy transform();
Strategy head();
Strategy projection();
Strategy conditioning();
Strategy small_mlp();
Strategy modulation();
Strategy flow_head();

Strategy end_strategy(const char* kind, Program (*build)(const Task&)) {
  return {
      .kind = kind,
      .name = kEndStrategy,
      .verb = Verb::gather,
      .build = build,
      .summary = "own rows; weights are gathered"};
}

std::vector<Strategy>& strategy_table() {
  static std::vector<Strategy> all = {
      megatron_ts(),
      ulysses_z(),
      data_z(),
      megatron_cz(),
      colossal_z(),
      metp(),
      usp(),
      all_gather_kv(),
      local_attention(),
      branch_attention(),
      along_a_dim(ulysses_z()),
      along_a_dim(megatron_cz()),
      along_a_dim(all_gather_kv()),
      along_a_dim(megatron_ts()),
      cross_attention(),
      global_local(),
      global_switch(),
      outer_product_gather(),
      outer_product_scatter(),
      triangle_gather(),
      triangle_scatter(),
      triangle_channels(),
      mlp_hold(),
      mlp_gather(),
      mlp_pass(),
      embedding(),
      transform(),
      head(),
      projection(),
      conditioning(),
      small_mlp(),
      modulation(),
      flow_head(),
  };
  return all;
}

}  // namespace paradyse
