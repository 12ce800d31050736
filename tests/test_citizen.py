"""What users of transformers do with any model: configs, outputs, pipelines, adapters, 16 bits, devices."""

import logging

import pytest

from modeling_elmo import ElmoConfig

# --------------------------------------------------------------------------------------------------------- configs


def test_a_saved_config_always_loads(tmp_path, caplog):
    config = ElmoConfig(projection_dim=8)
    config.tie_word_embeddings = False
    config.custom_pipelines = {"mine": {"impl": "mine.Mine", "pt": [], "type": "text"}}
    config.note = "an attribute of the user's"
    config.save_pretrained(tmp_path)
    logging.getLogger("transformers").propagate = True
    with caplog.at_level(logging.WARNING):
        loaded = ElmoConfig.from_pretrained(tmp_path)
    assert loaded.to_dict() == config.to_dict()
    warnings = [record.message for record in caplog.records if "does not know" in record.message]
    assert len(warnings) == 1
    assert warnings[0].endswith("not know: note")
    assert ElmoConfig.from_json_file(tmp_path / "config.json").note == config.note


def test_a_misspelled_key_is_still_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match="`projction_dim`; did you mean `projection_dim`"):
        ElmoConfig(projction_dim=8)
