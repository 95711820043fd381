//! Figures of a row, one value per run.

#[derive(Clone, Debug, Default)]
pub struct Figures(pub Vec<f64>);

impl Figures {
    pub fn add(&mut self, figure: f64) {
        self.0.push(figure);
    }

    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    }

    pub fn print(&self, name: &str, unit: &str) {
        if self.0.is_empty() {
            return;
        }
        let least = self.0.iter().copied().fold(f64::INFINITY, f64::min);
        let most = self.0.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        println!(
            "{{\"name\": \"isolation/{name}\", \"value\": {:.4}, \"unit\": \"{unit}\", \"min\": {least:.4}, \
             \"max\": {most:.4}, \"runs\": {}}}",
            self.median(),
            self.0.len(),
        );
    }
}
