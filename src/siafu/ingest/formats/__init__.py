"""Files and objects that hold a whole graph: `.npz`, PyG's objects, archives of OGB."""
