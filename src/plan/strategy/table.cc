#include "src/plan/strategy/table.h"

namespace paradyse {

Strategy megatron_ts();
Strategy data_z();
Strategy megatron_cz();
Strategy colossal_z();
Strategy metp();
Strategy usp();
Strategy all_gather_kv();
Strategy mlp_hold();
Strategy mlp_gather();
Strategy mlp_pass();
Strategy embedding();
Strategy transform();
Strategy head();

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
      mlp_hold(),
      mlp_gather(),
      mlp_pass(),
      embedding(),
      transform(),
      head(),
  };
  return all;
}

}  // namespace paradyse
