#pragma once

// The settings of an index by name, for files, factory strings and parameter
// spaces: a field that is added gets its line here. Names are for ever, they
// are in files.

#include <string>
#include <type_traits>
#include <utility>

#include <faiss/impl/FaissAssert.h>

#include <faiss_flashgmm/FlashGMMClustering.h>
#include <faiss_flashgmm/IVFMultiAssign.h>
#include <faiss_flashgmm/MultiAssign.h>
#include <faiss_flashgmm/Record.h>

namespace faiss_flashgmm {

template <class Enum>
using EnumName = std::pair<const char*, Enum>;

inline constexpr EnumName<AssignPolicy> kPolicyNames[] = {
        {"single", AssignPolicy::single},
        {"posterior", AssignPolicy::posterior},
        {"nearest", AssignPolicy::nearest},
        {"air", AssignPolicy::air},
        {"soar", AssignPolicy::soar},
        {"demand", AssignPolicy::demand},
};
inline constexpr EnumName<VarianceModel> kVarianceNames[] = {
        {"per_component", VarianceModel::per_component},
        {"tied", VarianceModel::tied},
};
inline constexpr EnumName<WeightModel> kWeightNames[] = {
        {"free", WeightModel::free},
        {"uniform", WeightModel::uniform},
};
inline constexpr EnumName<Initialization> kInitializationNames[] = {
        {"random_rows", Initialization::random_rows},
        {"kmeans_pp", Initialization::kmeans_pp},
        {"lloyd", Initialization::lloyd},
};

inline const auto& names_of(AssignPolicy) {
    return kPolicyNames;
}
inline const auto& names_of(VarianceModel) {
    return kVarianceNames;
}
inline const auto& names_of(WeightModel) {
    return kWeightNames;
}
inline const auto& names_of(Initialization) {
    return kInitializationNames;
}

template <class Enum>
std::string name_of(Enum value) {
    for (const auto& [name, other] : names_of(value)) {
        if (other == value) {
            return name;
        }
    }
    FAISS_THROW_FMT("%d has no name", int(value));
}

/// Returns whether there is such a name.
template <class Enum>
bool find_value(const std::string& name, Enum& value) {
    for (const auto& [other, of_other] : names_of(value)) {
        if (name == other) {
            value = of_other;
            return true;
        }
    }
    return false;
}

/// Calls visit(name, field) for each field of the settings; those of a const
/// object are const.
template <class T, class Visit>
requires std::is_same_v<std::remove_const_t<T>, MultiAssign>
void visit_fields(T& assigner, const Visit& visit) {
    visit("policy", assigner.policy);
    visit("tau", assigner.tau);
    visit("distance_ratio", assigner.distance_ratio);
    visit("max_entries", assigner.max_entries);
    visit("max_inflation", assigner.max_inflation);
    visit("rng_rule", assigner.rng_rule);
    visit("air_lambda", assigner.air_lambda);
    visit("air_relaxed", assigner.air_relaxed);
    visit("soar_lambda", assigner.soar_lambda);
    visit("candidates", assigner.candidates);
    visit("demand_neighbors", assigner.demand_parameters.neighbors);
    visit("demand_recall", assigner.demand_parameters.recall);
    visit("demand_probes", assigner.demand_parameters.probes);
    visit("demand_spread", assigner.demand_parameters.spread);
    visit("demand_price_weight", assigner.demand_parameters.price_weight);
    visit("demand_reach", assigner.demand_parameters.reach);
    visit("demand_surrogates", assigner.demand_parameters.surrogates);
    visit("demand_query_weight", assigner.demand_parameters.query_weight);
}

template <class T, class Visit>
requires std::is_same_v<std::remove_const_t<T>, LearnedAssignment>
void visit_fields(T& learned, const Visit& visit) {
    visit("settings", learned.settings);
    visit("threshold", learned.threshold);
    visit("demand_rows", learned.demand.rows);
    visit("demand_radii", learned.demand.radii);
    visit("demand_weights", learned.demand.weights);
    visit("demand_order", learned.demand.order);
    visit("demand_begin", learned.demand.begin);
    visit("demand_prices", learned.demand.prices);
    visit("demand_probes", learned.demand.probes);
    visit("demand_votes", learned.demand.votes);
}

template <class T, class Visit>
requires std::is_same_v<std::remove_const_t<T>, FlashGMMOptions>
void visit_fields(T& gmm, const Visit& visit) {
    visit("variance", gmm.variance);
    visit("weights", gmm.weights);
    visit("init", gmm.init);
    visit("init_iterations", gmm.init_iterations);
    visit("tol", gmm.tol);
    visit("variance_floor", gmm.variance_floor);
    visit("chunk_rows", gmm.chunk_rows);
}

template <class T, class Visit>
requires std::is_same_v<std::remove_const_t<T>, faiss::ClusteringParameters>
void visit_fields(T& cp, const Visit& visit) {
    visit("niter", cp.niter);
    visit("nredo", cp.nredo);
    visit("verbose", cp.verbose);
    visit("spherical", cp.spherical);
    visit("int_centroids", cp.int_centroids);
    visit("update_index", cp.update_index);
    visit("frozen_centroids", cp.frozen_centroids);
    visit("min_points_per_centroid", cp.min_points_per_centroid);
    visit("max_points_per_centroid", cp.max_points_per_centroid);
    visit("seed", cp.seed);
    visit("decode_block_size", cp.decode_block_size);
}

template <class T, class Visit>
requires std::is_same_v<std::remove_const_t<T>, Mixture>
void visit_fields(T& mixture, const Visit& visit) {
    visit("k", mixture.k);
    visit("d", mixture.d);
    visit("means", mixture.means);
    visit("variances", mixture.variances);
    visit("weights", mixture.weights);
}

template <class T, class Visit>
requires std::is_same_v<std::remove_const_t<T>, EntryCounts>
void visit_fields(T& counts, const Visit& visit) {
    visit("vectors", counts.vectors);
    visit("copies", counts.copies);
    visit("max_copies", counts.max_copies);
    visit("largest_id", counts.largest_id);
}

/// Stores the fields as "<prefix>.<name>".
template <class T>
void put_fields(const T& object, const std::string& prefix, Record& record) {
    visit_fields(object, [&](const char* name, const auto& field) {
        using Field = std::remove_cvref_t<decltype(field)>;
        const std::string full = prefix + "." + name;
        if constexpr (std::is_enum_v<Field>) {
            record.set(full, name_of(field));
        } else if constexpr (std::is_integral_v<Field>) {
            record.set(full, int64_t(field));
        } else if constexpr (std::is_floating_point_v<Field>) {
            record.set(full, double(field));
        } else {
            record.set(full, field);
        }
    });
}

/// Fields that the record lacks stay. Throws faiss::FaissException naming the
/// first that does not fit.
template <class T>
void get_fields(T& object, const std::string& prefix, const Record& record) {
    visit_fields(object, [&](const char* name, auto& field) {
        using Field = std::remove_cvref_t<decltype(field)>;
        const std::string full = prefix + "." + name;
        if constexpr (std::is_enum_v<Field>) {
            std::string value;
            FAISS_THROW_IF_NOT_FMT(
                    !record.get(full, value) || find_value(value, field),
                    "%s is '%s', which this version does not know",
                    full.c_str(),
                    value.c_str());
        } else if constexpr (std::is_integral_v<Field>) {
            int64_t value;
            if (record.get(full, value)) {
                field = Field(value);
                FAISS_THROW_IF_NOT_FMT(
                        int64_t(field) == value,
                        "%s is %ld",
                        full.c_str(),
                        long(value));
            }
        } else if constexpr (std::is_floating_point_v<Field>) {
            double value;
            if (record.get(full, value)) {
                field = Field(value);
            }
        } else {
            record.get(full, field);
        }
    });
}

} // namespace faiss_flashgmm
