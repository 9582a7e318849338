# shellcheck shell=bash
# The sets that data/fetch knows: what usage says, and one function each, which
# runs in the folder of the set and calls `get` and its like.

# shellcheck disable=SC2034
known_sets=(sift1m deep10m glove100)

describe_sets() {
    cat <<'END'
  sift1m    1,000,000 x 128 float32, 10,000 queries (TEXMEX, INRIA), 168 MB
  deep10m   the first 10,000,000 x 96 float32 of Deep1B, 10,000 queries
            (Yandex), 3.9 GB
  glove100  1,183,514 x 100 float32, angular, 10,000 queries (GloVe Twitter
            in the packing of ann-benchmarks), 486 MB
END
}

fetch_sift1m() {
    local files=(sift_base.fvecs sift_query.fvecs sift_groundtruth.ivecs)
    local sizes=(516000000 5160000 4040000) i
    if [[ -n $from && -e $from/${files[0]} ]]; then
        for i in "${!files[@]}"; do
            get "${files[i]}" "${sizes[i]}" - "${files[i]}"
        done
    elif [[ ! -e ${files[2]} ]]; then # the last one to be unpacked
        get sift.tar.gz - md5:b23d1b3b2ee8469d819b61ca900ef0ed \
            ftp://ftp.irisa.fr/local/texmex/corpus/sift.tar.gz \
            http://corpus-texmex.irisa.fr/sift/sift.tar.gz
        for i in "${!files[@]}"; do
            tar -xzf sift.tar.gz --strip-components=1 "sift/${files[i]}"
        done
        rm sift.tar.gz
    fi
    for i in "${!files[@]}"; do
        expect_size "${files[i]}" "${sizes[i]}"
    done
    record "${files[@]}"
}

fetch_deep10m() {
    local yandex=https://storage.yandexcloud.net/yandex-research/ann-datasets/DEEP
    local meta=https://dl.fbaipublicfiles.com/billion-scale-ann-benchmarks
    # 8 bytes that say how many rows and columns, and 10^7 of the 10^9 rows.
    get base.10M.fbin 3840000008 - \
        "$yandex/base.1B.fbin" "$yandex/base.10M.fbin"
    set_rows base.10M.fbin 10000000 96
    get query.public.10K.fbin 3840008 - "$yandex/query.public.10K.fbin"
    # Of the first 10 million rows: ids, then distances. Yandex's own file is
    # of all 10^9.
    get deep-10M 8000008 - "$meta/GT_10M/deep-10M"
    ln -sf deep-10M groundtruth.ibin
    record base.10M.fbin query.public.10K.fbin deep-10M
}

fetch_glove100() {
    get glove-100-angular.hdf5 hdf5 - \
        http://ann-benchmarks.com/glove-100-angular.hdf5 \
        http://vectors.erikbern.com/glove-100-angular.hdf5
    record glove-100-angular.hdf5
}
